#include "cli/drawing.hpp"

#include "cli/numbers.hpp"
#include "cli/picture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

namespace cli {
namespace {

// All lengths are in pixels of a sheet that fits a laptop's window unscaled.
constexpr double sheet_width = 1060;
constexpr double margin = 24;
constexpr double bar_left = 360;
constexpr double bar_width = 540;
constexpr double bar_height = 16;
constexpr double row_pitch = 24;
constexpr double numbers_left = bar_left + bar_width + 10;
/// The least a part takes that is there at all: enough to point at.
constexpr std::int64_t min_part_width = 6;
/// Slices narrower than this are drawn together.
constexpr double min_slice_width = 4;
/// What a letter takes, about: fonts differ, and nothing depends on it but where a label is left out.
constexpr double letter_width = 6.7;
/// Rows of one list. A row of the worst case takes 30 kB.
constexpr std::size_t max_rows = 24;
/// Letters of a title that are sure to fit.
constexpr std::size_t max_title_letters = 80;

// The colours are those of Okabe and Ito, which stay apart for colour-blind readers; text on them is always dark.
constexpr std::string_view style = R"(
    text { font: 12px system-ui, sans-serif; fill: #1b1f24; }
    .title { font-size: 17px; font-weight: 600; }
    .head { font-size: 13px; font-weight: 600; }
    .faint { fill: #59636e; }
    .end { text-anchor: end; }
    .middle { text-anchor: middle; }
    .on { fill: #111; font-size: 11px; }
    .sheet { fill: #fff; }
    .rule { stroke: #8b949e; stroke-width: 1; }
    .gap { stroke: #fff; stroke-width: 1; }
    .decode, .slice0 { fill: #56b4e9; }
    .extend, .slice1 { fill: #e69f00; }
    .prefill, .slice2 { fill: #2fb38b; }
    .slice3 { fill: #cc79a7; }
    .padding { fill: #b9c0c8; }
    .context { fill: #9fb3c8; }
    .behind { fill: #dbe4ee; }
    .query { fill: #f0e442; }
    .window { fill: #d55e00; }
    .unused { fill: #e7eaee; }
    .several { fill: url(#attnfuzz-several); }
    .hatch-ground { fill: #d7dbe0; }
    .hatch-line { stroke: #6b7580; stroke-width: 2; }
    .error { fill: none; stroke: #d55e00; stroke-width: 2; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6e9ec; }
      .faint { fill: #9aa4ae; }
      .on { fill: #111; }
      .sheet { fill: #15191e; }
      .gap { stroke: #15191e; }
      .behind { fill: #64748b; }
      .padding { fill: #7d8791; }
      .unused { fill: #2a3038; }
      .hatch-ground { fill: #8b949e; }
      .hatch-line { stroke: #4a525b; }
    }
)";

std::string grouped_range(std::int64_t low, std::int64_t high) {
  return low == high ? grouped(low) : grouped(low) + "–" + grouped(high);
}

std::string counted(std::int64_t count, std::string_view noun) { return cli::counted(count, grouped(count), noun); }

double text_width(std::string_view utf8) {
  const auto letters =
      std::count_if(utf8.begin(), utf8.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U; });
  return static_cast<double>(letters) * letter_width;
}

/// Elements at the end of a document, from a moving `y` downwards.
class Pen {
 public:
  Pen(std::string& out, double top) : y(top), out_(out) {}

  void text(double x, double baseline, std::string_view classes, std::string_view words) {
    const std::string attribute = classes.empty() ? "" : fmt::format(" class=\"{}\"", classes);
    out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}>{}</text>\n", x, baseline, attribute, xml_text(words));
  }
  void line(double x1, double y1, double x2, double y2) {
    out_ +=
        fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"rule\"/>\n", x1, y1, x2, y2);
  }
  /// A box from the current row's top, with what a pointer held over it says.
  void box(double x, double width, double height, std::string_view classes, std::string_view tip) {
    out_ += fmt::format("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" class=\"{}\">", x, y, width,
                        height, classes);
    out_ += fmt::format("<title>{}</title></rect>\n", xml_text(tip));
  }
  /// Words in the middle of a box that has room for them.
  void label(double x, double width, std::string_view words) {
    if (text_width(words) + 6 <= width) text(x + width / 2, y + 12, "on middle", words);
  }

  double y;

 private:
  std::string& out_;
};

/// A colour and what it stands for.
using Sign = std::pair<std::string_view, std::string>;

void draw_head(Pen& pen, std::string_view head, const std::vector<Sign>& signs) {
  pen.y += 30;
  pen.text(margin, pen.y, "head", head);
  double x = bar_left;
  for (const auto& [classes, meaning] : signs) {
    pen.y -= 10;
    pen.box(x, 12, 12, classes, meaning);
    pen.y += 10;
    pen.text(x + 17, pen.y, "faint", meaning);
    x += 17 + text_width(meaning) + 14;
  }
  pen.y += 12;
}

/// The powers of two are the round numbers here. At most eight ticks, and none whose number runs into the next.
std::int64_t tick_step(std::int64_t most, double room) {
  std::int64_t step = 1;
  while (most / step > 8 || bar_width * static_cast<double>(step) / static_cast<double>(most) < room) step *= 2;
  return step;
}

/// A number line from 0 to `most` tokens under a list of bars.
void draw_axis(Pen& pen, std::int64_t most) {
  const auto place = [&](std::int64_t tokens) {
    return bar_left + bar_width * static_cast<double>(tokens) / static_cast<double>(most);
  };
  const auto tick = [&](std::int64_t tokens) {
    pen.line(place(tokens), pen.y, place(tokens), pen.y + 4);
    pen.text(place(tokens), pen.y + 16, "faint middle", grouped(tokens));
  };
  pen.line(bar_left, pen.y, bar_left + bar_width, pen.y);
  const double width = text_width(grouped(most));
  // The end is always told; a tick whose number would run into it is left out.
  const double room = width + 12;
  const std::int64_t step = tick_step(most, room);
  for (std::int64_t at = 0; at < most && place(most) - place(at) >= room; at += step) tick(at);
  tick(most);
  pen.text(std::max(numbers_left + 24, place(most) + width / 2 + 8), pen.y + 16, "faint", "tokens");
  pen.y += 18;
}

// ---- Regions -----------------------------------------------------------------------------------------------------

std::string part_tip(const PartSize& part) {
  const std::string reqs = counted(part.num_reqs, name(part.part));
  return part.part == Part::padding ? reqs : reqs + ", " + counted(part.num_tokens, "query token");
}

/// Where regions meet, in tokens: the bar is not to scale where a region is too small to see, so it has no number line.
void draw_bounds(Pen& pen, const std::vector<std::pair<double, std::int64_t>>& bounds) {
  pen.line(bar_left, pen.y, bar_left + bar_width, pen.y);
  const double end = bounds.back().first;
  const double width = text_width(grouped(bounds.back().second));
  double taken = bar_left - 100;
  for (const auto& [x, tokens] : bounds) {
    pen.line(x, pen.y, x, pen.y + 4);
    const double half = text_width(grouped(tokens)) / 2 + 4;
    const bool last = x >= end;
    if (x - half < taken || (!last && x + half > end - width)) continue;
    pen.text(x, pen.y + 16, "faint middle", grouped(tokens));
    taken = x + half;
  }
  pen.text(std::max(numbers_left + 24, end + width / 2 + 8), pen.y + 16, "faint", "tokens");
  pen.y += 18;
}

void draw_regions(Pen& pen, const attn::Split& split) {
  const auto parts = part_sizes(split);
  std::vector<Sign> signs;
  for (const PartSize& part : parts)
    if (part.num_reqs > 0) signs.emplace_back(name(part.part), counted(part.num_reqs, name(part.part)));
  draw_head(pen, "Query tokens by region", signs);
  const auto widths = apportion_parts(split, static_cast<std::int64_t>(bar_width) / min_part_width);
  double x = bar_left;
  std::int64_t tokens = 0;
  std::vector<std::pair<double, std::int64_t>> bounds{{x, 0}};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (widths[i] == 0) continue;
    const double width = static_cast<double>(widths[i] * min_part_width);
    pen.box(x, width, bar_height + 6, std::string{name(parts[i].part)} + " gap", part_tip(parts[i]));
    pen.y += 3;
    if (parts[i].part != Part::padding) pen.label(x, width, grouped(parts[i].num_tokens));
    pen.y -= 3;
    x += width;
    tokens += parts[i].num_tokens;
    // Padding holds no token: its end is no other number.
    if (parts[i].part != Part::padding) bounds.emplace_back(x, tokens);
  }
  pen.y += bar_height + 8;
  draw_bounds(pen, bounds);
}

// ---- Requests ----------------------------------------------------------------------------------------------------

std::string request_name(const RequestRow& row, const attn::Split& split) {
  const std::string what = row.count == 1 ? std::string{name(row.part)} : counted(row.count, name(row.part));
  if (row.part != Part::extend) return what;
  const std::int64_t extend = row.first - split.num_decodes;
  std::string letters{extend_letter(extend)};
  if (row.count > 1) letters += "–" + std::string{extend_letter(extend + row.count - 1)};
  return letters + " " + what;
}

/// Names on the left, lengths against the bar. The numbers of the requests go where the two need the room.
void draw_request_label(Pen& pen, const std::string& request, const std::string& numbers, const std::string& lens) {
  const bool fits = text_width(request + numbers + lens) + 12 <= bar_left - 8 - margin;
  pen.text(margin, pen.y + 12, "", fits ? request + numbers : request);
  pen.text(bar_left - 8, pen.y + 12, "faint end", lens);
}

std::string request_lens(const RequestRow& row, bool bounds) {
  if (row.part == Part::padding) return "no token";
  const std::string seq_len = row.has_seq_len ? grouped_range(row.min_seq_len, row.max_seq_len) : "unknown";
  return fmt::format("q {}, s {}{}", grouped_range(row.min_query_len, row.max_query_len), bounds ? "≤ " : "", seq_len);
}

/// The bar of a row's longest request.
void draw_request(Pen& pen, const RequestBar& bar, std::int64_t most, std::string_view request, bool windowed) {
  const auto scaled = [&](std::int64_t tokens) {
    return bar_width * static_cast<double>(tokens) / static_cast<double>(most);
  };
  double x = bar_left;
  const auto piece = [&](std::int64_t tokens, std::string_view classes, std::string_view meaning) {
    if (tokens == 0) return;
    // A pixel at least: what is there shows.
    const double width = std::max(1.0, scaled(tokens));
    pen.box(x, width, bar_height, classes, fmt::format("{}: {} {}", request, grouped(tokens), meaning));
    pen.label(x, width, grouped(tokens));
    x += width;
  };
  piece(bar.behind_window, "behind", "context tokens left of the window");
  piece(bar.context, "context", "context tokens");
  piece(bar.query, "query", "query tokens");
  if (!windowed) return;
  const double start = bar_left + scaled(bar.behind_window);
  pen.y += bar_height + 1;
  pen.box(start, std::max(1.0, x - start), 3, "window",
          fmt::format("{}: window over {} keys", request, grouped(bar.context + bar.query)));
  pen.y -= bar_height + 1;
}

void draw_requests(Pen& pen, const attn::Batch& batch, const attn::Metadata& metadata) {
  const auto rows = request_rows(batch, metadata, max_rows);
  std::int64_t most = 1;
  bool summed = false;
  for (const RequestRow& row : rows) {
    most = std::max(most, request_bar(batch, metadata, row.longest).tokens());
    summed |= row.min_query_len != row.max_query_len || row.min_seq_len != row.max_seq_len;
  }
  std::vector<Sign> signs{{"context", "context"}, {"query", "query"}};
  const bool windowed = metadata.window && metadata.split.num_extends > 0;
  if (windowed) {
    signs.emplace_back("behind", "context left of the window");
    signs.emplace_back("window", fmt::format("window (window_left {})", grouped(*batch.config.window_left)));
  }
  draw_head(pen, summed ? "Requests (of several the longest)" : "Requests", signs);
  const bool bounds = batch.seq_lens.empty() && !batch.seq_lens_upper_bound.empty();
  for (const RequestRow& row : rows) {
    const std::string request = request_name(row, metadata.split);
    const std::string numbers = fmt::format(" ({})", grouped_range(row.first, row.first + row.count - 1));
    const RequestBar bar = request_bar(batch, metadata, row.longest);
    // The region's colour ties the row to the bar above.
    pen.box(margin - 9, 4, bar_height, name(row.part), name(row.part));
    draw_request_label(pen, request, numbers, request_lens(row, bounds));
    draw_request(pen, bar, most, request + numbers, windowed && row.part == Part::extend);
    if (row.part != Part::padding) pen.text(numbers_left + 100, pen.y + 12, "faint end", grouped(bar.tokens()));
    pen.y += row_pitch;
  }
  draw_axis(pen, most);
}

// ---- Chunks ------------------------------------------------------------------------------------------------------

/// Neighbouring slices of one chunk that are too narrow to be drawn apart.
struct Crowd {
  std::int64_t first_extend = 0;
  std::int64_t last_extend = 0;
  std::int64_t slices = 0;
  std::int64_t start = 0;  ///< in the workspace
  std::int64_t end = 0;
};

class ChunkBar {
 public:
  ChunkBar(Pen& pen, const attn::ChunkedContext& context, std::int32_t chunk, std::int64_t workspace)
      : pen_(pen), context_(context), chunk_(chunk), workspace_(workspace) {}

  void draw() {
    const auto cu = context_.cu_seq_lens[chunk_];
    const std::int64_t unused = workspace_ - cu.back();
    // Under the slices, which have a least width and may reach over it.
    if (unused > 0) box(cu.back(), workspace_, "unused", fmt::format("{} unused", grouped(unused)));
    for (std::size_t e = 0; e + 1 < cu.size(); ++e) {
      if (cu[e] == cu[e + 1]) continue;
      const auto extend = static_cast<std::int64_t>(e);
      const bool narrow = scaled(cu[e + 1] - cu[e]) < min_slice_width;
      // Two wide slices with a narrow one between them are worth three boxes, ten narrow ones are not worth ten.
      if (crowd_.slices > 0 && !narrow) flush();
      if (crowd_.slices++ == 0) crowd_ = {extend, extend, 1, cu[e], cu[e]};
      crowd_.last_extend = extend;
      crowd_.end = cu[e + 1];
      if (!narrow) flush();
    }
    if (crowd_.slices > 0) flush();
  }

 private:
  [[nodiscard]] double scaled(std::int64_t tokens) const {
    return bar_width * static_cast<double>(tokens) / static_cast<double>(workspace_);
  }
  void box(std::int64_t start, std::int64_t end, std::string_view classes, const std::string& what) {
    const bool wide = scaled(end - start) >= min_slice_width;
    pen_.box(bar_left + scaled(start), std::max(1.5, scaled(end - start)), bar_height,
             fmt::format("{}{}", classes, wide && classes != "unused" ? " gap" : ""),
             fmt::format("chunk {}: {}", grouped(chunk_), what));
  }
  void flush() {
    if (crowd_.slices > 1)
      box(crowd_.start, crowd_.end, "several",
          fmt::format("{} slices of extends {} to {}, {} tokens", grouped(crowd_.slices), grouped(crowd_.first_extend),
                      grouped(crowd_.last_extend), grouped(crowd_.end - crowd_.start)));
    else
      slice(crowd_.first_extend, crowd_.end - crowd_.start);
    crowd_ = {};
  }
  void slice(std::int64_t extend, std::int64_t tokens) {
    const std::int64_t start = context_.chunk_starts[chunk_][static_cast<std::size_t>(extend)];
    const std::string_view letter = extend_letter(extend);
    box(crowd_.start, crowd_.end, fmt::format("slice{}", extend % 4),
        fmt::format("extend {} ({}), context {} to {}, {} tokens", grouped(extend), letter, grouped(start),
                    grouped(start + tokens), grouped(tokens)));
    const std::string wordy = fmt::format("{} {}", letter, grouped(tokens));
    const bool roomy = text_width(wordy) + 6 <= scaled(tokens);
    pen_.label(bar_left + scaled(crowd_.start), scaled(tokens), roomy ? std::string_view{wordy} : letter);
  }

  Pen& pen_;
  const attn::ChunkedContext& context_;
  std::int32_t chunk_;
  std::int64_t workspace_;
  Crowd crowd_;
};

void draw_chunk_row(Pen& pen, const ChunkRow& row, const attn::ChunkedContext& context, std::int64_t workspace) {
  const auto totals = context.seq_tot.subspan(static_cast<std::size_t>(row.first), static_cast<std::size_t>(row.count));
  if (!row.alike) {
    const auto [least, most] = std::minmax_element(totals.begin(), totals.end());
    pen.text(margin, pen.y + 12, "faint", fmt::format("… and {} more", counted(row.count, "chunk")));
    pen.text(bar_left, pen.y + 12, "faint",
             fmt::format("{} to {} full", percent(*least, workspace), percent(*most, workspace)));
    pen.y += row_pitch;
    return;
  }
  const std::string chunks = grouped_range(row.first, row.first + row.count - 1);
  pen.text(margin, pen.y + 12, "",
           row.count == 1 ? "chunk " + chunks : fmt::format("chunks {}, {} alike", chunks, grouped(row.count)));
  pen.text(bar_left - 8, pen.y + 12, "faint end",
           "longest " + grouped(context.max_seq_lens[static_cast<std::size_t>(row.first)]));
  ChunkBar{pen, context, row.first, workspace}.draw();
  pen.text(numbers_left + 100, pen.y + 12, "faint end",
           fmt::format("{} · {}", grouped(totals[0]), percent(totals[0], workspace)));
  pen.y += row_pitch;
}

void draw_chunks(Pen& pen, const attn::Batch& batch, const attn::Metadata& metadata) {
  const attn::ChunkedContext& context = metadata.context;
  if (context.num_chunks == 0) {
    draw_head(pen, "Chunks over the workspace", {});
    pen.text(margin, pen.y + 8, "faint",
             batch.config.chunk_policy == attn::ChunkPolicy::none
                 ? "num_chunks is 0: no chunks were asked for."
                 : "num_chunks is 0: there is no context to gather, and the context pass is skipped.");
    pen.y += row_pitch;
    return;
  }
  const std::int64_t workspace = batch.config.workspace_tokens;
  const std::size_t num_extends = context.context_lens.size();
  std::vector<Sign> signs{{"slice0", "A"}, {"slice1", "B"}, {"slice2", "C"}, {"slice3", "D"}};
  signs.resize(std::min(signs.size(), num_extends));
  signs.back().second += num_extends > signs.size() ? ", … slices by extend" : " slices by extend";
  signs.emplace_back("several", "several narrow slices");
  signs.emplace_back("unused", "unused");
  draw_head(pen, fmt::format("{}, {}", counted(context.num_chunks, "chunk"), attn::name(batch.config.chunk_policy)),
            signs);
  for (const ChunkRow& row : chunk_rows(context, max_rows)) draw_chunk_row(pen, row, context, workspace);
  draw_axis(pen, workspace);
}

// ---- Steps -------------------------------------------------------------------------------------------------------

std::string config_line(const attn::Batch& batch) {
  const attn::Config& config = batch.config;
  return fmt::format(
      "decode_threshold {} · workspace_tokens {} · chunk_policy {} · chunk_alignment {} · window_left {}",
      grouped(config.decode_threshold), grouped(config.workspace_tokens), attn::name(config.chunk_policy),
      grouped(config.chunk_alignment), config.window_left ? grouped(*config.window_left) : "none");
}

void draw_error(Pen& pen, const attn::Error& error) {
  pen.y += 16;
  pen.box(margin, sheet_width - 2 * margin, 52, "error", "an error by the contract");
  pen.text(margin + 14, pen.y + 21, "head", "The builder refuses this batch, as the contract says");
  pen.text(margin + 14, pen.y + 40, "", attn::message(error));
  pen.y += 60;
}

void draw_metadata(Pen& pen, const attn::Batch& batch, const attn::Metadata& metadata) {
  pen.y += 18;
  pen.text(margin, pen.y, "faint",
           fmt::format("{}, {}, {}", counted(batch.num_reqs, "request"),
                       counted(batch.num_actual_tokens, "query token"), counted(metadata.num_kv_tokens, "KV token")));
  if (batch.num_reqs > 0) {
    draw_regions(pen, metadata.split);
    draw_requests(pen, batch, metadata);
  }
  draw_chunks(pen, batch, metadata);
}

}  // namespace

void Drawing::add(std::string_view title, const attn::Batch& batch,
                  const tl::expected<attn::Metadata, attn::Error>& built) {
  if (++num_steps_ > max_steps) return;
  Pen pen{body_, height_};
  pen.y += 40;
  pen.text(margin, pen.y, "title", shortened(title, max_title_letters));
  pen.y += 20;
  pen.text(margin, pen.y, "faint", config_line(batch));
  if (built)
    draw_metadata(pen, batch, *built);
  else
    draw_error(pen, built.error());
  height_ = pen.y + 12;
}

std::string Drawing::svg() const {
  std::string body = body_;
  double height = height_ + 12;
  if (num_steps_ > max_steps) {
    Pen pen{body, height};
    pen.text(margin, pen.y + 12, "faint", fmt::format("… and {} not drawn", counted(num_steps_ - max_steps, "step")));
    height += 24;
  }
  const std::string size =
      fmt::format("width=\"{0}\" height=\"{1:.0f}\" viewBox=\"0 0 {0} {1:.0f}\"", sheet_width, height);
  return fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" {} role=\"img\">\n", size) +
         "<title>Attention metadata, drawn by attnfuzz show</title>\n" + fmt::format("<style>{}</style>\n", style) +
         "<defs><pattern id=\"attnfuzz-several\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
         "patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" class=\"hatch-ground\"/>"
         "<line x1=\"0\" y1=\"0\" x2=\"0\" y2=\"6\" class=\"hatch-line\"/></pattern></defs>\n"
         "<rect width=\"100%\" height=\"100%\" class=\"sheet\"/>\n" +
         body + "</svg>\n";
}

std::string xml_text(std::string_view text) {
  std::string out;
  for (const char c : printable(text)) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&apos;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace cli
