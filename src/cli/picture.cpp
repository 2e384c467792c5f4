#include "cli/picture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace cli {
namespace {

/// Rows of each of a picture's two lists. Two lists of 12, their legends on the narrowest canvas and the bar of the
/// batch stay within max_picture_lines.
constexpr std::size_t max_rows = 12;
/// Rows of a table, and slices named in one of its rows.
constexpr std::int32_t max_table_rows = 32;
constexpr std::size_t max_table_slices = 8;
/// A bar narrower than this says nothing.
constexpr int min_bar_columns = 12;

// ---- What there is to draw ---------------------------------------------------------------------------------------

Part part_of(const attn::Split& split, std::int32_t req) noexcept {
  const std::int64_t first_prefill = std::int64_t{split.num_decodes} + split.num_extends;
  if (req < split.num_decodes) return Part::decode;
  if (req < first_prefill) return Part::extend;
  return req < first_prefill + split.num_prefills ? Part::prefill : Part::padding;
}

/// Whether no token follows from request `req` on. Such a request may carry any stale length, in a decode-only batch
/// too.
bool is_padding(const attn::Batch& batch, std::int32_t req) noexcept {
  return batch.query_start_loc[static_cast<std::size_t>(req)] == batch.query_start_loc.back();
}

RequestRow row_of(const attn::Batch& batch, const attn::Metadata& metadata, std::int32_t req) {
  RequestRow row;
  row.part = part_of(metadata.split, req);
  row.first = row.longest = req;
  row.min_query_len = row.max_query_len = batch.query_len(req);
  const auto seq_lens = batch.best_seq_lens();
  row.has_seq_len = !is_padding(batch, req) && !seq_lens.empty();
  if (row.has_seq_len) row.min_seq_len = row.max_seq_len = seq_lens[static_cast<std::size_t>(req)];
  return row;
}

bool equal_lens(const RequestRow& a, const RequestRow& b) noexcept {
  return a.part == b.part && a.max_query_len == b.min_query_len && a.has_seq_len == b.has_seq_len &&
         a.max_seq_len == b.min_seq_len;
}

/// Makes `row` hold the requests of `next`, which follow its own, too.
void absorb(RequestRow& row, const RequestRow& next, const attn::Batch& batch, const attn::Metadata& metadata) {
  row.count += next.count;
  row.min_query_len = std::min(row.min_query_len, next.min_query_len);
  row.max_query_len = std::max(row.max_query_len, next.max_query_len);
  if (next.has_seq_len) {
    row.min_seq_len = row.has_seq_len ? std::min(row.min_seq_len, next.min_seq_len) : next.min_seq_len;
    row.max_seq_len = std::max(row.max_seq_len, next.max_seq_len);
    row.has_seq_len = true;
  }
  if (request_bar(batch, metadata, next.longest).tokens() > request_bar(batch, metadata, row.longest).tokens())
    row.longest = next.longest;
}

std::vector<RequestRow> request_runs(const attn::Batch& batch, const attn::Metadata& metadata, bool each_extend) {
  std::vector<RequestRow> runs;
  for (std::int32_t req = 0; req < batch.num_reqs; ++req) {
    const RequestRow row = row_of(batch, metadata, req);
    const bool alone = each_extend && row.part == Part::extend;
    if (!alone && !runs.empty() && equal_lens(runs.back(), row))
      ++runs.back().count;
    else
      runs.push_back(row);
  }
  return runs;
}

/// One row for each part but the extends, which keep a row each as far as they fit.
std::vector<RequestRow> summarise(const std::vector<RequestRow>& runs, std::size_t most, const attn::Batch& batch,
                                  const attn::Metadata& metadata) {
  const std::size_t extends_apart = most - num_parts;
  std::size_t extends = 0;
  std::vector<RequestRow> rows;
  for (const RequestRow& run : runs) {
    const bool apart = run.part == Part::extend && extends++ <= extends_apart;
    if (!apart && !rows.empty() && rows.back().part == run.part)
      absorb(rows.back(), run, batch, metadata);
    else
      rows.push_back(run);
  }
  return rows;
}

bool cut_alike(const attn::ChunkedContext& context, std::int32_t a, std::int32_t b) {
  const auto left = context.seq_lens[a];
  const auto right = context.seq_lens[b];
  return std::equal(left.begin(), left.end(), right.begin());
}

/// Bytes of the UTF-8 sequence that `text` starts with: its length where it is valid and no control, else 0.
std::size_t printable_length(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return lead >= 0x20 && lead != 0x7f ? 1 : 0;
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  std::uint32_t code = lead & (0xffU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) return 0;
    code = code << 6U | (byte(i) & 0x3fU);
  }
  constexpr std::array<std::uint32_t, 5> least{0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  // XML takes neither U+FFFE nor U+FFFF; U+0080 to U+009F are controls.
  const bool refused = code < 0xa0 || code == 0xfffe || code == 0xffff || code > 0x10ffff;
  return code < least[length] || surrogate || refused ? 0 : length;
}

// ---- Lines of a terminal -----------------------------------------------------------------------------------------

enum class Ink : std::uint8_t { plain, faint, decode, extend, prefill, padding, context, query, slice };

Ink ink_of(Part part) noexcept {
  constexpr std::array<Ink, num_parts> inks{Ink::decode, Ink::extend, Ink::prefill, Ink::padding};
  return inks[static_cast<std::size_t>(part)];
}

/// Letters and lines that stay apart without colour.
std::string_view glyph_of(Part part) noexcept {
  constexpr std::array<std::string_view, num_parts> glyphs{"d", "e", "p", "."};
  return glyphs[static_cast<std::size_t>(part)];
}

/// The number of an ANSI colour. Neighbouring extends differ, and none of the pairs that meet is red and green.
int ansi(Ink ink, std::int64_t extend) noexcept {
  constexpr std::array<int, 9> codes{0, 90, 36, 33, 35, 90, 34, 33, 0};
  constexpr std::array<int, 4> slices{36, 33, 35, 34};
  return ink == Ink::slice ? slices[static_cast<std::size_t>(extend % 4)] : codes[static_cast<std::size_t>(ink)];
}

int width_of(std::string_view utf8) noexcept {
  return static_cast<int>(
      std::count_if(utf8.begin(), utf8.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U; }));
}

/// One line, cut off where the canvas ends.
class Line {
 public:
  explicit Line(const Canvas& canvas) : canvas_(canvas) {}

  Line& text(std::string_view utf8, Ink ink = Ink::plain, std::int64_t extend = 0) {
    std::size_t bytes = 0;
    while (bytes < utf8.size() && room() > 0) {
      ++width_;
      ++bytes;
      while (bytes < utf8.size() && (static_cast<unsigned char>(utf8[bytes]) & 0xc0U) == 0x80U) ++bytes;
    }
    paint(utf8.substr(0, bytes), ink, extend);
    return *this;
  }
  Line& fill(std::string_view glyph, std::int64_t count, Ink ink, std::int64_t extend = 0) {
    std::string run;
    for (std::int64_t i = 0; i < count; ++i) run += glyph;
    return text(run, ink, extend);
  }
  [[nodiscard]] int width() const noexcept { return width_; }
  [[nodiscard]] int room() const noexcept { return canvas_.columns - width_; }
  [[nodiscard]] std::string str() const { return bytes_ + "\n"; }

 private:
  void paint(std::string_view text, Ink ink, std::int64_t extend) {
    const bool painted = canvas_.colour && ink != Ink::plain && !text.empty();
    if (painted) bytes_ += fmt::format("\x1b[{}m", ansi(ink, extend));
    bytes_ += text;
    if (painted) bytes_ += "\x1b[0m";
  }

  Canvas canvas_;
  std::string bytes_;
  int width_ = 0;
};

/// A sign and what it stands for.
struct Sign {
  std::string_view glyph;
  Ink ink;
  std::string meaning;
};

/// A head line and the signs behind it, as many a line as fit.
std::string legend(const Canvas& canvas, std::string_view head, const std::vector<Sign>& signs) {
  std::string out = Line{canvas}.text(head).str();
  Line line{canvas};
  for (const Sign& sign : signs) {
    const int width = 2 + width_of(sign.glyph) + 1 + width_of(sign.meaning);
    if (line.width() > 0 && width > line.room()) {
      out += line.str();
      line = Line{canvas};
    }
    line.text("  ").text(sign.glyph, sign.ink).text(" ").text(sign.meaning, Ink::faint);
  }
  return line.width() > 0 ? out + line.str() : out;
}

using Cells = std::vector<std::string>;

/// Columns of equal width, two blanks between them; `sides` says `l` or `r` for each. Cells are ASCII.
std::vector<std::string> align(const std::vector<Cells>& rows, std::string_view sides) {
  std::vector<std::size_t> widths(sides.size(), 0);
  for (const Cells& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::vector<std::string> lines;
  for (const Cells& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i > 0) line += "  ";
      line += sides[i] == 'r' ? fmt::format("{:>{}}", row[i], widths[i]) : fmt::format("{:<{}}", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    lines.push_back(std::move(line));
  }
  return lines;
}

/// Columns that labels may take, two blanks and the two ends of the bar aside.
std::size_t label_columns(const std::vector<std::string>& labels, const Canvas& canvas) {
  std::size_t widest = 0;
  for (const std::string& label : labels) widest = std::max(widest, label.size());
  return std::min(widest, static_cast<std::size_t>(canvas.columns - min_bar_columns - 6));
}

/// A line with its label, from where the bar goes on.
Line labelled(const Canvas& canvas, std::string_view label, std::size_t columns) {
  Line line{canvas};
  line.text("  ").text(label.substr(0, columns));
  line.fill(" ", static_cast<std::int64_t>(columns) + 4 - line.width(), Ink::plain);
  return line;
}

// ---- The three parts of a picture --------------------------------------------------------------------------------

std::string draw_batch(const attn::Batch& batch, const attn::Split& split, const Canvas& canvas) {
  const auto parts = part_sizes(split);
  std::vector<Sign> signs;
  for (const PartSize& part : parts) {
    if (part.num_reqs == 0) continue;
    const std::string count = counted(part.num_reqs, std::to_string(part.num_reqs), name(part.part));
    const std::string tokens = part.part == Part::padding ? "" : fmt::format(", q {}", part.num_tokens);
    signs.push_back({glyph_of(part.part), ink_of(part.part), count + tokens});
  }
  const std::string head =
      fmt::format("batch: {}, {} to scale", counted(batch.num_reqs, std::to_string(batch.num_reqs), "request"),
                  counted(batch.num_actual_tokens, std::to_string(batch.num_actual_tokens), "query token"));
  if (signs.empty()) return Line{canvas}.text("batch: empty, no request and no token").str();

  Line line{canvas};
  line.text("  |");
  const auto cells = apportion_parts(split, line.room() - 1);
  for (std::size_t i = 0; i < parts.size(); ++i) line.fill(glyph_of(parts[i].part), cells[i], ink_of(parts[i].part));
  line.text("|");
  return legend(canvas, head, signs) + line.str();
}

Cells request_label(const RequestRow& row, const attn::Split& split, bool bounds) {
  const std::string reqs =
      row.count == 1 ? std::to_string(row.first) : fmt::format("{}-{}", row.first, row.first + row.count - 1);
  std::string letters;
  if (row.part == Part::extend) {
    const std::int64_t extend = row.first - split.num_decodes;
    letters = extend_letter(extend);
    if (row.count > 1) letters += fmt::format("-{}", extend_letter(extend + row.count - 1));
  }
  const std::string what =
      row.count == 1 ? std::string{name(row.part)} : counted(row.count, std::to_string(row.count), name(row.part));
  if (row.part == Part::padding) return {letters, reqs, what};
  const std::string seq_len = row.has_seq_len ? range(row.min_seq_len, row.max_seq_len) : "?";
  return {letters, reqs, what, "q " + range(row.min_query_len, row.max_query_len), (bounds ? "s<=" : "s ") + seq_len};
}

/// A request to scale: cells in all for `most` tokens, every kind of token it has in at least one of them.
void draw_request(Line& line, const RequestBar& bar, std::int64_t most, std::int64_t cells) {
  const std::array<std::int64_t, 3> sizes{bar.behind_window, bar.context, bar.query};
  const std::int64_t kinds = std::count_if(sizes.begin(), sizes.end(), [](std::int64_t size) { return size > 0; });
  const std::int64_t used = std::clamp((bar.tokens() * cells + most - 1) / most, kinds, cells);
  const auto widths = apportion(sizes, used);
  line.fill("-", widths[0], Ink::faint).fill("#", widths[1], Ink::context).fill("=", widths[2], Ink::query);
}

std::string draw_requests(const attn::Batch& batch, const attn::Metadata& metadata, const Canvas& canvas) {
  const auto rows = request_rows(batch, metadata, max_rows);
  const bool bounds = batch.seq_lens.empty() && !batch.seq_lens_upper_bound.empty();
  std::vector<Cells> cells;
  std::int64_t most = 1;
  bool summed = false;
  for (const RequestRow& row : rows) {
    cells.push_back(request_label(row, metadata.split, bounds));
    most = std::max(most, request_bar(batch, metadata, row.longest).tokens());
    summed |= row.min_query_len != row.max_query_len || row.min_seq_len != row.max_seq_len;
  }
  std::vector<Sign> signs{{"#", Ink::context, "context"}, {"=", Ink::query, "query"}};
  if (metadata.window && metadata.split.num_extends > 0)
    signs.push_back({"-", Ink::faint, fmt::format("context left of the window ({})", *batch.config.window_left)});

  const auto labels = align(cells, "lrlll");
  const std::size_t columns = label_columns(labels, canvas);
  std::string out = legend(
      canvas, fmt::format("requests{}: a full bar is {} tokens", summed ? " (of several the longest)" : "", most),
      signs);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Line line = labelled(canvas, labels[i], columns);
    const std::int64_t bar_cells = line.room() - 2;
    line.text("|");
    const int start = line.width();
    draw_request(line, request_bar(batch, metadata, rows[i].longest), most, bar_cells);
    line.fill(" ", bar_cells - (line.width() - start), Ink::plain).text("|");
    out += line.str();
  }
  return out;
}

/// The extend shown in the cell of a chunk's tokens [lo, hi), -1 for several. `extend` holds token lo. A slice that
/// starts here and goes on has its first cell here; one that fits in between others makes them several. So every slice
/// is seen.
std::int64_t shown_in_cell(std::span<const std::int32_t> cu, std::size_t extend, std::int64_t lo, std::int64_t hi) {
  std::int64_t last = -1;
  int slices = 0;
  bool whole = false;
  for (std::size_t e = extend; e + 1 < cu.size() && cu[e] < hi; ++e) {
    if (cu[e] == cu[e + 1]) continue;
    ++slices;
    whole |= cu[e] >= lo && cu[e + 1] <= hi;
    last = static_cast<std::int64_t>(e);
  }
  return slices > 1 && whole ? -1 : last;
}

void draw_chunk(Line& line, const attn::ChunkedContext& context, std::int32_t chunk, std::int64_t workspace,
                std::int64_t cells) {
  const auto cu = context.cu_seq_lens[chunk];
  const std::int64_t total = cu.back();
  // Whatever is unused shows, however little it is, and so does whatever is used.
  const std::int64_t most = total < workspace ? cells - 1 : cells;
  const std::int64_t used =
      total == 0 ? 0 : std::clamp<std::int64_t>((total * cells + workspace - 1) / workspace, 1, most);
  std::size_t extend = 0;
  for (std::int64_t cell = 0; cell < used; ++cell) {
    const std::int64_t lo = cell * total / used;
    const std::int64_t hi = std::max(lo + 1, (cell + 1) * total / used);
    while (cu[extend + 1] <= lo) ++extend;
    const std::int64_t shown = shown_in_cell(cu, extend, lo, hi);
    if (shown < 0)
      line.text("*");
    else
      line.text(extend_letter(shown), Ink::slice, shown);
  }
  line.fill("·", cells - used, Ink::faint);
}

Cells chunk_label(const ChunkRow& row, const attn::ChunkedContext& context, std::int64_t workspace) {
  const std::int64_t total = context.seq_tot[static_cast<std::size_t>(row.first)];
  const std::string chunks =
      row.count == 1 ? std::to_string(row.first) : fmt::format("{}-{}", row.first, row.first + row.count - 1);
  return {chunks, std::to_string(total), percent(total, workspace)};
}

/// What a row of unlike chunks says in place of a bar.
std::string remaining_chunks(const ChunkRow& row, const attn::ChunkedContext& context, std::int64_t workspace) {
  const auto totals = context.seq_tot.subspan(static_cast<std::size_t>(row.first), static_cast<std::size_t>(row.count));
  const auto [least, most] = std::minmax_element(totals.begin(), totals.end());
  return fmt::format("  ... and {} more, {} to {} full", row.count, percent(*least, workspace),
                     percent(*most, workspace));
}

std::string draw_chunks(const attn::Batch& batch, const attn::Metadata& metadata, const Canvas& canvas) {
  const attn::ChunkedContext& context = metadata.context;
  if (context.num_chunks == 0) return Line{canvas}.text("chunks: none, there is no context to gather").str();
  const std::int64_t workspace = batch.config.workspace_tokens;
  const auto rows = chunk_rows(context, max_rows);
  std::vector<Cells> cells;
  for (const ChunkRow& row : rows)
    if (row.alike) cells.push_back(chunk_label(row, context, workspace));
  const auto labels = align(cells, "lrr");
  const std::size_t columns = label_columns(labels, canvas);

  std::string out = legend(
      canvas,
      fmt::format("{}, {}: a full bar is the workspace of {} tokens",
                  counted(context.num_chunks, std::to_string(context.num_chunks), "chunk"),
                  attn::name(batch.config.chunk_policy), workspace),
      {{"A..Z", Ink::plain, "slices by extend"}, {"*", Ink::plain, "several slices"}, {"·", Ink::faint, "unused"}});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].alike) {
      out += Line{canvas}.text(remaining_chunks(rows[i], context, workspace)).str();
      continue;
    }
    Line line = labelled(canvas, labels[i], columns);
    line.text("|");
    draw_chunk(line, context, rows[i].first, workspace, line.room() - 1);
    out += line.text("|").str();
  }
  return out;
}

// ---- Tables ------------------------------------------------------------------------------------------------------

std::string indented(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) out += "  " + line + "\n";
  return out;
}

std::string region_table(const attn::Metadata& metadata) {
  std::vector<Cells> rows{{"region", "requests", "tokens", "query_len", "seq_len"}};
  const attn::Split& split = metadata.split;
  const auto add = [&](std::string_view name, const attn::Region& region, std::int32_t num_tokens) {
    Cells row{std::string{name}, std::to_string(region.num_reqs), std::to_string(num_tokens)};
    if (region.num_reqs > 0) {
      row.push_back(range(region.min_query_len, region.max_query_len));
      row.push_back(range(region.min_seq_len, region.max_seq_len));
    }
    rows.push_back(std::move(row));
  };
  add("decode", metadata.decode, split.num_decode_tokens);
  add("extend", metadata.extend, split.num_extend_tokens);
  add("prefill", metadata.prefill, split.num_prefill_tokens);
  rows.push_back({"padding", std::to_string(split.num_padding),
                  split.num_padding_tokens > 0 ? std::to_string(split.num_padding_tokens) : ""});
  return indented(align(rows, "lrrrr"));
}

/// "A 0+1024  B 0+800": for each extend with any tokens where they start and how many they are.
std::string slice_list(std::span<const std::int32_t> starts, std::span<const std::int32_t> lens) {
  std::string out;
  std::size_t named = 0;
  std::size_t left_out = 0;
  for (std::size_t e = 0; e < lens.size(); ++e) {
    if (lens[e] == 0) continue;
    if (named == max_table_slices) {
      ++left_out;
      continue;
    }
    if (named++ > 0) out += "  ";
    out += fmt::format("{} {}+{}", extend_letter(static_cast<std::int64_t>(e)), starts[e], lens[e]);
  }
  return left_out == 0 ? out : out + fmt::format("  ... and {} more", left_out);
}

std::string chunk_table(const attn::Batch& batch, const attn::ChunkedContext& context) {
  if (context.num_chunks == 0) return "  num_chunks 0: no context to gather\n";
  std::vector<Cells> rows{{"chunk", "tokens", "full", "longest", "slices, start+length in each extend's context"}};
  const std::int32_t shown = std::min(context.num_chunks, max_table_rows);
  for (std::int32_t chunk = 0; chunk < shown; ++chunk) {
    const auto c = static_cast<std::size_t>(chunk);
    rows.push_back({std::to_string(chunk), std::to_string(context.seq_tot[c]),
                    percent(context.seq_tot[c], batch.config.workspace_tokens), std::to_string(context.max_seq_lens[c]),
                    slice_list(context.chunk_starts[chunk], context.seq_lens[chunk])});
  }
  std::string out = fmt::format("  num_chunks {}\n", context.num_chunks) + indented(align(rows, "rrrrl"));
  if (shown < context.num_chunks) out += fmt::format("  ... and {} more\n", context.num_chunks - shown);
  return out;
}

std::string window_table(const attn::Batch& batch, const attn::SlidingWindow& window) {
  return fmt::format("  window_left {}: {} keys of the extends, at most {} of one\n    {}\n", *batch.config.window_left,
                     window.total_tokens, window.max_seq_len, slice_list(window.seq_starts, window.seq_lens));
}

}  // namespace

std::string_view name(Part part) noexcept {
  constexpr std::array<std::string_view, num_parts> names{"decode", "extend", "prefill", "padding"};
  return names[static_cast<std::size_t>(part)];
}

std::string counted(std::int64_t count, std::string_view written, std::string_view noun) {
  return fmt::format("{} {}{}", written, noun, count == 1 || noun == name(Part::padding) ? "" : "s");
}

std::array<PartSize, num_parts> part_sizes(const attn::Split& split) noexcept {
  return {{{Part::decode, split.num_decodes, split.num_decode_tokens},
           {Part::extend, split.num_extends, split.num_extend_tokens},
           {Part::prefill, split.num_prefills, split.num_prefill_tokens},
           {Part::padding, split.num_padding, 0}}};
}

std::vector<std::int64_t> apportion(std::span<const std::int64_t> sizes, std::int64_t cells) {
  std::vector<std::int64_t> dealt(sizes.size(), 0);
  const std::int64_t total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  if (total == 0) return dealt;
  std::int64_t left = cells;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) continue;
    dealt[i] = std::max<std::int64_t>(1, sizes[i] * cells / total);
    left -= dealt[i];
  }
  const auto largest = std::max_element(dealt.begin(), dealt.end());
  *largest = std::max<std::int64_t>(1, *largest + left);
  return dealt;
}

std::vector<std::int64_t> apportion_parts(const attn::Split& split, std::int64_t cells) {
  // Requests without a token are there all the same, and weigh nothing beside one token.
  constexpr std::int64_t weight_of_token = 1000;
  std::vector<std::int64_t> sizes;
  for (const PartSize& part : part_sizes(split))
    sizes.push_back(part.num_reqs == 0 ? 0 : std::max<std::int64_t>(part.num_tokens * weight_of_token, 1));
  return apportion(sizes, cells);
}

std::vector<RequestRow> request_rows(const attn::Batch& batch, const attn::Metadata& metadata, std::size_t most) {
  auto rows = request_runs(batch, metadata, true);
  if (rows.size() > most) rows = request_runs(batch, metadata, false);
  if (rows.size() > most) rows = summarise(rows, most, batch, metadata);
  return rows;
}

RequestBar request_bar(const attn::Batch& batch, const attn::Metadata& metadata, std::int32_t req) noexcept {
  RequestBar bar;
  bar.query = batch.query_len(req);
  const auto seq_lens = batch.best_seq_lens();
  if (seq_lens.empty() || is_padding(batch, req)) return bar;
  bar.context = attn::context_len(batch.query_len(req), seq_lens[static_cast<std::size_t>(req)]);
  if (!metadata.window || part_of(metadata.split, req) != Part::extend) return bar;
  const auto extend = static_cast<std::size_t>(req - metadata.split.num_decodes);
  const std::int64_t seen = std::clamp<std::int64_t>(metadata.window->seq_lens[extend] - bar.query, 0, bar.context);
  bar.behind_window = bar.context - seen;
  bar.context = seen;
  return bar;
}

std::vector<ChunkRow> chunk_rows(const attn::ChunkedContext& context, std::size_t most) {
  std::vector<ChunkRow> rows;
  const bool each = static_cast<std::size_t>(context.num_chunks) <= most;
  for (std::int32_t chunk = 0; chunk < context.num_chunks; ++chunk) {
    if (!each && !rows.empty() && rows.back().alike && cut_alike(context, rows.back().first, chunk)) {
      ++rows.back().count;
      continue;
    }
    if (rows.size() < most) {
      rows.push_back({chunk, 1, true});
      continue;
    }
    rows.back().alike = false;
    ++rows.back().count;
  }
  return rows;
}

std::string_view extend_letter(std::int64_t extend) noexcept {
  constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
  return letters.substr(static_cast<std::size_t>(extend) % letters.size(), 1);
}

std::string percent(std::int64_t part, std::int64_t whole) {
  const std::int64_t hundredths = whole == 0 ? 0 : part * 100 / whole;
  return hundredths == 0 && part > 0 ? "<1%" : fmt::format("{}%", hundredths);
}

std::string range(std::int64_t low, std::int64_t high) {
  return low == high ? std::to_string(low) : fmt::format("{}..{}", low, high);
}

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = printable_length(text);
    out += length == 0 ? std::string_view{"\uFFFD"} : text.substr(0, length);
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out;
}

std::string shortened(std::string_view text, std::size_t max_letters) {
  const std::string whole = printable(text);
  std::vector<std::size_t> letters;
  for (std::size_t at = 0; at < whole.size(); ++at)
    if ((static_cast<unsigned char>(whole[at]) & 0xc0U) != 0x80U) letters.push_back(at);
  if (letters.size() <= max_letters) return whole;
  const std::size_t behind = max_letters / 2;
  const std::size_t before = max_letters - behind - 1;
  return whole.substr(0, letters[before]) + "…" + whole.substr(letters[letters.size() - behind]);
}

std::string picture(const attn::Batch& batch, const attn::Metadata& metadata, const Canvas& canvas) {
  const Canvas wide_enough{std::max(canvas.columns, min_columns), canvas.colour};
  std::string out = draw_batch(batch, metadata.split, wide_enough);
  if (batch.num_reqs == 0) return out;
  return out + draw_requests(batch, metadata, wide_enough) + draw_chunks(batch, metadata, wide_enough);
}

std::string metadata_table(const attn::Batch& batch, const attn::Metadata& metadata) {
  std::string out = region_table(metadata) + fmt::format("  num_kv_tokens {}\n", metadata.num_kv_tokens);
  out += chunk_table(batch, metadata.context);
  if (metadata.window) out += window_table(batch, *metadata.window);
  return out;
}

}  // namespace cli
