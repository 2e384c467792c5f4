#include "attn/metadata.hpp"
#include "batchtext/batchtext.hpp"
#include "cli/drawing.hpp"
#include "cli/json.hpp"
#include "cli/picture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace {

using cli::Canvas;
using cli::Json;

/// A step, its host arrays, and what the builder made of them.
struct Shown {
  explicit Shown(const batchtext::Step& step) : arrays(step), built(builder.build(arrays.batch())) {}

  [[nodiscard]] const attn::Batch& batch() const { return arrays.batch(); }
  [[nodiscard]] const attn::Metadata& metadata() const { return built.value(); }
  [[nodiscard]] std::string picture(int columns = 100) const {
    return cli::picture(batch(), metadata(), Canvas{columns, false});
  }

  batchtext::Arrays arrays;
  attn::MetadataBuilder builder;
  tl::expected<attn::Metadata, attn::Error> built;
};

void add(batchtext::Step& step, int count, std::int32_t query_len, std::int32_t seq_len) {
  for (int i = 0; i < count; ++i) step.requests.push_back({query_len, seq_len});
}

/// Decodes, extends of two lengths, prefills.
batchtext::Step mixed() {
  batchtext::Step step;
  step.config.workspace_tokens = 4096;
  add(step, 8, 1, 1024);
  add(step, 3, 512, 4096);
  add(step, 1, 100, 9000);
  add(step, 2, 2048, 2048);
  return step;
}

batchtext::Step packed() {
  batchtext::Step step = mixed();
  step.config.chunk_policy = attn::ChunkPolicy::packed;
  return step;
}

batchtext::Step windowed() {
  batchtext::Step step = mixed();
  step.config.window_left = 1000;
  return step;
}

batchtext::Step padded() {
  batchtext::Step step = mixed();
  add(step, 4, 0, 77);
  return step;
}

batchtext::Step decode_only() {
  batchtext::Step step;
  step.seq_lens.source = batchtext::Lens::none;
  add(step, 64, 1, 4096);
  add(step, 12, 0, 9);
  return step;
}

/// Cross-attention without any encoder token: extends without context.
batchtext::Step zero_chunks() {
  batchtext::Step step;
  add(step, 2, 3, 0);
  return step;
}

batchtext::Step unordered() {
  batchtext::Step step;
  add(step, 1, 4, 4);
  add(step, 1, 4, 9);
  return step;
}

/// A thousand requests of a class, no two alike, and more chunks than anybody reads.
batchtext::Step huge() {
  batchtext::Step step;
  step.config.workspace_tokens = 65536;
  for (std::int32_t i = 0; i < 1000; ++i) add(step, 1, 1, 30 + 7 * i);
  for (std::int32_t i = 0; i < 1000; ++i) add(step, 1, 2 + i % 500, 600 + 9 * i);
  for (std::int32_t i = 0; i < 1000; ++i) add(step, 1, 20 + i, 20 + i);
  add(step, 50, 0, 1);
  return step;
}

std::vector<batchtext::Step> accepted() {
  return {batchtext::Step{}, mixed(), packed(), windowed(), padded(), decode_only(), zero_chunks(), huge()};
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

/// The letters of a line, each as the bytes it is made of, ANSI colours left out.
std::vector<std::string> letters_of(std::string_view line) {
  std::vector<std::string> letters;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b') {
      i = line.find('m', i);
    } else if ((static_cast<unsigned char>(line[i]) & 0xc0U) == 0x80U) {
      letters.back() += line[i];
    } else {
      letters.emplace_back(1, line[i]);
    }
  }
  return letters;
}

/// What stands between the two ends of a line's bar.
std::vector<std::string> bar_of(std::string_view line) {
  const std::size_t first = line.find('|');
  const std::size_t last = line.rfind('|');
  return first == last ? std::vector<std::string>{} : letters_of(line.substr(first + 1, last - first - 1));
}

/// The lines behind the one that holds `head`.
std::vector<std::string> lines_behind(const std::string& text, std::string_view head) {
  auto lines = lines_of(text);
  const auto at = std::find_if(lines.begin(), lines.end(),
                               [&](const std::string& line) { return line.find(head) != std::string::npos; });
  if (at == lines.end()) return {};
  return {at + 1, lines.end()};
}

std::int64_t count_of(const std::vector<std::string>& letters, std::string_view letter) {
  return std::count(letters.begin(), letters.end(), letter);
}

// ---- Shares of a bar ---------------------------------------------------------------------------------------------

TEST(Shares, sum_to_the_cells_and_leave_nobody_out) {
  const std::vector<std::int64_t> sizes{0, 1, 2, 999, 1 << 30};
  for (const std::int64_t a : sizes)
    for (const std::int64_t b : sizes)
      for (const std::int64_t c : sizes)
        for (const std::int64_t d : sizes)
          for (std::int64_t cells = 4; cells < 40; ++cells) {
            const std::vector<std::int64_t> parts{a, b, c, d};
            const auto shares = cli::apportion(parts, cells);
            const bool empty = a + b + c + d == 0;
            ASSERT_EQ(std::accumulate(shares.begin(), shares.end(), std::int64_t{0}), empty ? 0 : cells);
            for (std::size_t i = 0; i < parts.size(); ++i)
              ASSERT_EQ(shares[i] > 0, parts[i] > 0) << a << ' ' << b << ' ' << c << ' ' << d << " in " << cells;
          }
}

TEST(Shares, follow_the_sizes) {
  EXPECT_EQ(cli::apportion(std::vector<std::int64_t>{25, 50, 25}, 80), (std::vector<std::int64_t>{20, 40, 20}));
}

TEST(Shares, padding_weighs_nothing_beside_tokens) {
  EXPECT_EQ(cli::apportion_parts(Shown{padded()}.metadata().split, 80).back(), 1);
}

// ---- Rows --------------------------------------------------------------------------------------------------------

TEST(RequestRows, hold_every_request_once_in_order) {
  for (const batchtext::Step& step : accepted()) {
    const Shown shown{step};
    for (const std::size_t most : {5U, 12U, 24U, 5000U}) {
      const auto rows = cli::request_rows(shown.batch(), shown.metadata(), most);
      EXPECT_LE(rows.size(), most);
      std::int32_t next = 0;
      for (const cli::RequestRow& row : rows) {
        EXPECT_EQ(row.first, next);
        EXPECT_GE(row.longest, row.first);
        EXPECT_LT(row.longest, row.first + row.count);
        next += row.count;
      }
      EXPECT_EQ(next, shown.batch().num_reqs);
    }
  }
}

TEST(RequestRows, never_mix_parts) {
  const Shown shown{huge()};
  std::vector<std::int64_t> requests(cli::num_parts, 0);
  for (const cli::RequestRow& row : cli::request_rows(shown.batch(), shown.metadata(), 12))
    requests[static_cast<std::size_t>(row.part)] += row.count;
  EXPECT_EQ(requests, (std::vector<std::int64_t>{1000, 1000, 1000, 50}));
}

TEST(RequestRows, give_the_range_and_the_longest_of_what_they_hold) {
  const Shown shown{huge()};
  const auto rows = cli::request_rows(shown.batch(), shown.metadata(), 12);
  EXPECT_EQ(rows[0].min_seq_len, 30);
  EXPECT_EQ(rows[0].max_seq_len, 30 + 7 * 999);
  EXPECT_EQ(rows[0].longest, 999);
  EXPECT_FALSE(rows.back().has_seq_len) << "padding carries stale lengths";
}

TEST(RequestBars, add_up_to_context_and_query) {
  const Shown shown{windowed()};
  const cli::RequestBar bar = cli::request_bar(shown.batch(), shown.metadata(), 11);
  EXPECT_EQ(bar.tokens(), 9000);
  EXPECT_EQ(bar.query, 100);
  EXPECT_EQ(bar.context, 1001) << "window_left, and the query token's own key";
  EXPECT_EQ(bar.behind_window, shown.metadata().window->seq_starts[3]);
}

TEST(RequestBars, read_no_length_of_padding) {
  const Shown shown{padded()};
  EXPECT_EQ(cli::request_bar(shown.batch(), shown.metadata(), 15).tokens(), 0);
}

TEST(ChunkRows, hold_every_chunk_once_in_order) {
  for (const batchtext::Step& step : accepted()) {
    const Shown shown{step};
    for (const std::size_t most : {1U, 4U, 12U, 5000U}) {
      const auto rows = cli::chunk_rows(shown.metadata().context, most);
      EXPECT_LE(rows.size(), most);
      std::int32_t next = 0;
      for (const cli::ChunkRow& row : rows) {
        EXPECT_EQ(row.first, next);
        next += row.count;
      }
      EXPECT_EQ(next, shown.metadata().context.num_chunks);
    }
  }
}

TEST(ChunkRows, share_a_row_only_where_cut_alike) {
  // Three chunks of four equal slices, one of unequal ones, four of one slice, its rest.
  const auto rows = cli::chunk_rows(Shown{mixed()}.metadata().context, 4);
  ASSERT_EQ(rows.size(), 4);
  EXPECT_EQ(rows[0].count, 3);
  EXPECT_EQ(rows[1].count, 1);
  EXPECT_EQ(rows[2].count, 4);
  EXPECT_TRUE(rows[3].alike);
}

TEST(Percent, says_full_only_when_full_and_empty_only_when_empty) {
  EXPECT_EQ(cli::percent(4096, 4096), "100%");
  EXPECT_EQ(cli::percent(4095, 4096), "99%");
  EXPECT_EQ(cli::percent(1, 4096), "<1%");
  EXPECT_EQ(cli::percent(0, 4096), "0%");
  EXPECT_EQ(cli::percent(0, 0), "0%");
}

TEST(Printable, holds_no_control_and_no_broken_utf8) {
  EXPECT_EQ(cli::printable("größe≤…"), "größe≤…");
  EXPECT_EQ(cli::printable("a\x1b[31m\n"), "a\uFFFD[31m\uFFFD");
  EXPECT_EQ(cli::printable("\xff\xc3"), "\uFFFD\uFFFD");
  EXPECT_EQ(cli::printable("\xc0\xaf"), "\uFFFD\uFFFD") << "overlong";
  EXPECT_EQ(cli::printable("\xed\xa0\x80"), "\uFFFD\uFFFD\uFFFD") << "surrogate";
  EXPECT_EQ(cli::printable("\xf4\x90\x80\x80").find('\xf4'), std::string::npos) << "beyond Unicode";
}

TEST(Shortened, keeps_both_ends_and_whole_letters) {
  EXPECT_EQ(cli::shortened("abcdef", 6), "abcdef");
  EXPECT_EQ(cli::shortened("abcdefg", 6), "ab…efg");
  EXPECT_EQ(cli::shortened("üüüüüüü", 4), "ü…üü");
  EXPECT_EQ(cli::shortened("\x01", 4), "\uFFFD");
}

// ---- The picture for a terminal ----------------------------------------------------------------------------------

TEST(Picture, stays_within_its_columns_and_lines) {
  for (const batchtext::Step& step : accepted()) {
    const Shown shown{step};
    for (const int columns : {1, 39, 40, 41, 80, 100, 333})
      for (const bool colour : {false, true}) {
        const auto lines = lines_of(cli::picture(shown.batch(), shown.metadata(), Canvas{columns, colour}));
        EXPECT_LE(lines.size(), static_cast<std::size_t>(cli::max_picture_lines));
        for (const std::string& line : lines)
          EXPECT_LE(letters_of(line).size(), static_cast<std::size_t>(std::max(columns, cli::min_columns))) << line;
      }
  }
}

TEST(Picture, shows_every_region_that_has_a_request) {
  for (const int columns : {1, 100}) {
    for (const batchtext::Step& step : {padded(), huge()}) {
      const auto lines = lines_of(Shown{step}.picture(columns));
      const auto at = std::find_if(lines.begin(), lines.end(), [](const auto& line) { return !bar_of(line).empty(); });
      ASSERT_NE(at, lines.end());
      const auto bar = bar_of(*at);
      for (const char* glyph : {"d", "e", "p", "."}) EXPECT_GE(count_of(bar, glyph), 1) << glyph << " in " << *at;
    }
  }
}

TEST(Picture, shows_no_region_that_has_none) {
  const auto bar = bar_of(lines_of(Shown{decode_only()}.picture())[2]);
  EXPECT_EQ(count_of(bar, "d"), static_cast<std::int64_t>(bar.size()));
}

TEST(Picture, has_no_escape_without_colour) {
  const Shown shown{mixed()};
  EXPECT_EQ(shown.picture().find('\x1b'), std::string::npos);
  const std::string coloured = cli::picture(shown.batch(), shown.metadata(), Canvas{100, true});
  EXPECT_NE(coloured.find('\x1b'), std::string::npos);
  // The same letters, whatever their colour.
  const auto plain = lines_of(shown.picture());
  const auto painted = lines_of(coloured);
  ASSERT_EQ(plain.size(), painted.size());
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(letters_of(plain[i]), letters_of(painted[i]));
}

TEST(Picture, draws_requests_to_scale) {
  const auto lines = lines_behind(Shown{mixed()}.picture(), "# context");
  ASSERT_GE(lines.size(), 6);
  const auto longest = bar_of(lines[4]);
  EXPECT_EQ(count_of(longest, " "), 0) << "a full bar is the longest request";
  EXPECT_GE(count_of(longest, "="), 1) << "1% of query tokens are seen";
  const auto prefill = bar_of(lines[5]);
  EXPECT_EQ(count_of(prefill, "#"), 0);
  const double share = static_cast<double>(count_of(prefill, "=")) / static_cast<double>(prefill.size());
  EXPECT_NEAR(share, 2048.0 / 9000.0, 1.0 / static_cast<double>(prefill.size()));
}

TEST(Picture, marks_what_the_window_left_behind) {
  EXPECT_EQ(count_of(bar_of(lines_behind(Shown{mixed()}.picture(), "# context")[1]), "-"), 0);
  const auto lines = lines_behind(Shown{windowed()}.picture(), "# context");
  EXPECT_EQ(count_of(bar_of(lines[0]), "-"), 0) << "a decode has no window here";
  EXPECT_GT(count_of(bar_of(lines[1]), "-"), 0);
}

/// The bars of the chunks, from the first on.
std::vector<std::vector<std::string>> chunk_bars(const std::string& picture) {
  std::vector<std::vector<std::string>> bars;
  for (const std::string& line : lines_behind(picture, "unused"))
    if (auto bar = bar_of(line); !bar.empty()) bars.push_back(std::move(bar));
  return bars;
}

TEST(Picture, fills_a_chunk_as_far_as_its_tokens_go) {
  for (const batchtext::Step& step : {mixed(), packed(), windowed(), padded()}) {
    const Shown shown{step};
    const attn::ChunkedContext& context = shown.metadata().context;
    for (const int columns : {1, 77, 200}) {
      const auto bars = chunk_bars(shown.picture(columns));
      ASSERT_EQ(bars.size(), static_cast<std::size_t>(context.num_chunks));
      for (std::size_t c = 0; c < bars.size(); ++c) {
        const auto cells = static_cast<std::int64_t>(bars[c].size());
        const std::int64_t unused = count_of(bars[c], "·");
        const double fill = static_cast<double>(context.seq_tot[c]) / step.config.workspace_tokens;
        EXPECT_NEAR(static_cast<double>(cells - unused), fill * static_cast<double>(cells), 1.0) << "chunk " << c;
        EXPECT_EQ(unused == 0, context.seq_tot[c] == step.config.workspace_tokens);
      }
    }
  }
}

TEST(Picture, shows_every_slice_of_a_chunk) {
  for (const batchtext::Step& step : {mixed(), packed()}) {
    const Shown shown{step};
    const attn::ChunkedContext& context = shown.metadata().context;
    const auto bars = chunk_bars(shown.picture());
    for (std::size_t c = 0; c < bars.size(); ++c) {
      const auto lens = context.seq_lens[static_cast<std::int64_t>(c)];
      for (std::size_t e = 0; e < lens.size(); ++e)
        EXPECT_EQ(count_of(bars[c], cli::extend_letter(static_cast<std::int64_t>(e))) > 0, lens[e] > 0);
    }
  }
}

TEST(Picture, shows_a_single_token_in_the_largest_workspace) {
  batchtext::Step step;
  step.config.workspace_tokens = 2147483647;
  add(step, 1, 4, 5);
  const auto bars = chunk_bars(Shown{step}.picture());
  ASSERT_EQ(bars.size(), 1);
  EXPECT_EQ(count_of(bars[0], "A"), 1);
}

TEST(Picture, hides_no_narrow_slice_behind_wide_ones) {
  batchtext::Step step;
  step.config.chunk_policy = attn::ChunkPolicy::packed;
  for (const std::int32_t context : {9000, 1, 9000, 1, 1, 9000}) add(step, 1, 4, 4 + context);
  const auto bars = chunk_bars(Shown{step}.picture(80));
  ASSERT_EQ(bars.size(), 1);
  EXPECT_GE(count_of(bars[0], "*"), 2);
  for (const char* wide : {"A", "C", "F"}) EXPECT_GT(count_of(bars[0], wide), 0) << wide;
}

TEST(Picture, tells_an_empty_batch_and_no_chunks) {
  EXPECT_NE(Shown{batchtext::Step{}}.picture().find("empty"), std::string::npos);
  EXPECT_NE(Shown{zero_chunks()}.picture().find("chunks: none"), std::string::npos);
}

TEST(MetadataTable, names_the_numbers) {
  const Shown shown{windowed()};
  const std::string table = cli::metadata_table(shown.batch(), shown.metadata());
  for (const char* text : {"100..512", "4096..9000", "num_kv_tokens 33576", "num_chunks 9", "D 8192+708",
                           "window_left 1000", "D 7899+1101"})
    EXPECT_NE(table.find(text), std::string::npos) << text << " in\n" << table;
}

TEST(MetadataTable, is_short_for_huge_batches) {
  const Shown shown{huge()};
  const std::string table = cli::metadata_table(shown.batch(), shown.metadata());
  EXPECT_LE(lines_of(table).size(), 60);
  EXPECT_LE(table.size(), 10000);
  EXPECT_NE(table.find("... and "), std::string::npos);
}

// ---- SVG ---------------------------------------------------------------------------------------------------------

/// Whether `text` is one XML element with balanced tags, quoted attributes and no stray `<` or `&`.
class XmlReader {
 public:
  explicit XmlReader(std::string_view text) : text_(text) {}

  bool well_formed() {
    if (!element()) return false;
    while (!text_.empty() && std::isspace(static_cast<unsigned char>(text_[0])) != 0) text_.remove_prefix(1);
    return text_.empty();
  }

 private:
  bool take(std::string_view expected) {
    if (text_.substr(0, expected.size()) != expected) return false;
    text_.remove_prefix(expected.size());
    return true;
  }
  std::string_view take_until(std::string_view stops) {
    const std::string_view taken = text_.substr(0, text_.find_first_of(stops));
    text_.remove_prefix(taken.size());
    return taken;
  }
  static bool sound(std::string_view words) {
    for (std::size_t at = words.find('&'); at != std::string_view::npos; at = words.find('&', at + 1)) {
      const std::string_view entity = words.substr(at, words.find(';', at) - at);
      if (entity != "&lt" && entity != "&gt" && entity != "&amp" && entity != "&quot" && entity != "&apos")
        return false;
    }
    return std::none_of(words.begin(), words.end(), [](char c) { return c >= 0 && c < ' ' && c != '\n'; });
  }
  bool attributes() {
    while (take(" ")) {
      if (take_until("= <>\"").empty() || !take("=\"") || !sound(take_until("\"<")) || !take("\"")) return false;
    }
    return true;
  }
  bool element() {
    if (!take("<")) return false;
    const std::string name{take_until(" />")};
    if (name.empty() || !attributes()) return false;
    if (take("/>")) return true;
    if (!take(">")) return false;
    while (true) {
      if (!sound(take_until("<"))) return false;
      if (take("</")) return take(name) && take(">");
      if (!element()) return false;
    }
  }

  std::string_view text_;
};

std::string drawing_of(const Shown& shown, std::string_view title = "a batch") {
  cli::Drawing drawing;
  drawing.add(title, shown.batch(), shown.built);
  return drawing.svg();
}

TEST(Svg, checker_tells_good_from_bad) {
  EXPECT_TRUE(XmlReader{"<a b=\"c\">x &lt; y<d/></a>\n"}.well_formed());
  for (const char* bad : {"", "<a>", "<a></b>", "<a b=c/>", "<a>&</a>", "<a>x & y</a>", "<a/><b/>", "<a b=\"<\"/>"})
    EXPECT_FALSE(XmlReader{bad}.well_formed()) << bad;
}

TEST(Svg, is_well_formed) {
  for (const batchtext::Step& step : accepted()) EXPECT_TRUE(XmlReader{drawing_of(Shown{step})}.well_formed());
  EXPECT_TRUE(XmlReader{drawing_of(Shown{unordered()})}.well_formed());
  EXPECT_TRUE(XmlReader{cli::Drawing{}.svg()}.well_formed()) << "no step at all";
}

TEST(Svg, escapes_titles) {
  const std::string svg = drawing_of(Shown{mixed()}, "a<b>&\"'\x01\xff");
  EXPECT_TRUE(XmlReader{svg}.well_formed());
  EXPECT_NE(svg.find("a&lt;b&gt;&amp;&quot;&apos;\uFFFD\uFFFD"), std::string::npos);
}

TEST(Svg, needs_nothing_besides_itself) {
  const std::string svg = drawing_of(Shown{windowed()});
  for (const char* foreign : {"<script", "href", "@import", "@font-face", "<image"})
    EXPECT_EQ(svg.find(foreign), std::string::npos) << foreign;
  const std::size_t address = svg.find("http");
  EXPECT_EQ(svg.find("http", address + 1), std::string::npos) << "only the namespace";
  EXPECT_NE(svg.find("prefers-color-scheme: dark"), std::string::npos);
}

TEST(Svg, stays_small_for_huge_batches) {
  EXPECT_LE(drawing_of(Shown{huge()}).size(), 200000);
  batchtext::Step alternating;
  alternating.config.chunk_policy = attn::ChunkPolicy::packed;
  alternating.config.workspace_tokens = 4096;
  for (int i = 0; i < 5000; ++i) {
    add(alternating, 1, 4, 5);
    add(alternating, 1, 4, 4 + 31);
  }
  EXPECT_LE(drawing_of(Shown{alternating}).size(), 1500000);
}

TEST(Svg, puts_steps_below_each_other_up_to_a_cap) {
  const Shown shown{mixed()};
  cli::Drawing drawing;
  for (int i = 0; i < 40; ++i) drawing.add("step " + std::to_string(i), shown.batch(), shown.built);
  const std::string svg = drawing.svg();
  EXPECT_TRUE(XmlReader{svg}.well_formed());
  EXPECT_NE(svg.find(">step 31<"), std::string::npos);
  EXPECT_EQ(svg.find(">step 32<"), std::string::npos);
  EXPECT_NE(svg.find("8 steps not drawn"), std::string::npos);
}

TEST(Svg, tells_the_error_in_place_of_the_metadata) {
  const Shown shown{unordered()};
  const std::string svg = drawing_of(shown);
  EXPECT_NE(svg.find(cli::xml_text(attn::message(shown.built.error()))), std::string::npos);
  EXPECT_EQ(svg.find("Requests"), std::string::npos);
}

TEST(Svg, has_a_tooltip_for_every_slice) {
  const Shown shown{mixed()};
  const std::string svg = drawing_of(shown);
  for (const char* tip : {"chunk 0: extend 0 (A), context 0 to 1,024, 1,024 tokens",
                          "chunk 8: extend 3 (D), context 8,192 to 8,900, 708 tokens", "chunk 8: 3,388 unused"})
    EXPECT_NE(svg.find(tip), std::string::npos) << tip;
}

// ---- JSON --------------------------------------------------------------------------------------------------------

template <class T>
void expect_array(const Json& array, std::span<const T> values) {
  ASSERT_TRUE(array.is_array());
  EXPECT_EQ(array.get<std::vector<T>>(), (std::vector<T>{values.begin(), values.end()}));
}

void expect_rows(const Json& matrix, const attn::Rows<const std::int32_t>& rows, std::int32_t num_rows) {
  ASSERT_TRUE(matrix.is_array());
  ASSERT_EQ(matrix.size(), static_cast<std::size_t>(num_rows));
  for (std::int32_t row = 0; row < num_rows; ++row) expect_array(matrix[static_cast<std::size_t>(row)], rows[row]);
}

void expect_region(const Json& json, const attn::Region& region) {
  EXPECT_EQ(json["first_req"], region.first_req);
  EXPECT_EQ(json["num_reqs"], region.num_reqs);
  EXPECT_EQ(json["num_tokens"], region.num_tokens);
  EXPECT_EQ(json["max_query_len"], region.max_query_len);
  EXPECT_EQ(json["min_query_len"], region.min_query_len);
  EXPECT_EQ(json["max_seq_len"], region.max_seq_len);
  EXPECT_EQ(json["min_seq_len"], region.min_seq_len);
  expect_array(json["query_start_loc"], region.query_start_loc);
}

void expect_context(const Json& json, const attn::ChunkedContext& context) {
  EXPECT_EQ(json["num_chunks"], context.num_chunks);
  expect_array(json["context_lens"], context.context_lens);
  expect_rows(json["chunk_starts"], context.chunk_starts, context.num_chunks);
  expect_rows(json["seq_lens"], context.seq_lens, context.num_chunks);
  expect_rows(json["cu_seq_lens"], context.cu_seq_lens, context.num_chunks);
  expect_array(json["seq_tot"], context.seq_tot);
  expect_array(json["max_seq_lens"], context.max_seq_lens);
  expect_array(json["token_start"], context.token_start);
  ASSERT_EQ(json["token_to_batch"].size(), static_cast<std::size_t>(context.num_chunks));
  for (std::int32_t chunk = 0; chunk < context.num_chunks; ++chunk)
    expect_array(json["token_to_batch"][static_cast<std::size_t>(chunk)], context.token_to_batch(chunk));
}

void expect_window(const Json& json, const attn::SlidingWindow& window) {
  expect_array(json["seq_starts"], window.seq_starts);
  expect_array(json["seq_lens"], window.seq_lens);
  expect_array(json["cu_seq_lens"], window.cu_seq_lens);
  expect_array(json["token_to_batch"], window.token_to_batch);
  EXPECT_EQ(json["max_seq_len"], window.max_seq_len);
  EXPECT_EQ(json["total_tokens"], window.total_tokens);
}

TEST(JsonForm, equals_the_metadata_field_by_field) {
  for (const batchtext::Step& step : accepted()) {
    const Shown shown{step};
    const attn::Metadata& metadata = shown.metadata();
    // Through its text, as a reader gets it.
    const Json json = Json::parse(cli::to_json(shown.built).dump());
    EXPECT_FALSE(json.contains("error"));
    EXPECT_EQ(json["split"]["num_decodes"], metadata.split.num_decodes);
    EXPECT_EQ(json["split"]["num_extends"], metadata.split.num_extends);
    EXPECT_EQ(json["split"]["num_prefills"], metadata.split.num_prefills);
    EXPECT_EQ(json["split"]["num_padding"], metadata.split.num_padding);
    EXPECT_EQ(json["split"]["num_decode_tokens"], metadata.split.num_decode_tokens);
    EXPECT_EQ(json["split"]["num_extend_tokens"], metadata.split.num_extend_tokens);
    EXPECT_EQ(json["split"]["num_prefill_tokens"], metadata.split.num_prefill_tokens);
    expect_region(json["decode"], metadata.decode);
    expect_region(json["extend"], metadata.extend);
    expect_region(json["prefill"], metadata.prefill);
    expect_context(json["context"], metadata.context);
    EXPECT_EQ(json["num_kv_tokens"], metadata.num_kv_tokens);
    EXPECT_EQ(json["window"].is_null(), !metadata.window.has_value());
    if (metadata.window) expect_window(json["window"], *metadata.window);
  }
}

TEST(JsonForm, has_empty_arrays_without_chunks) {
  const Json context = cli::to_json(Shown{zero_chunks()}.built)["context"];
  for (const char* name : {"chunk_starts", "seq_lens", "cu_seq_lens", "seq_tot", "max_seq_lens", "token_to_batch"})
    EXPECT_EQ(context[name], Json::array()) << name;
}

TEST(JsonForm, of_an_error_is_the_error_alone) {
  const Shown shown{unordered()};
  const Json json = cli::to_json(shown.built);
  ASSERT_EQ(json.size(), 1);
  EXPECT_EQ(json["error"]["kind"], "unordered");
  EXPECT_EQ(json["error"]["index"], 1);
  EXPECT_EQ(json["error"]["value"], 5);
  EXPECT_EQ(json["error"]["limit"], 0);
  EXPECT_EQ(json["error"]["message"], attn::message(shown.built.error()));
}

/// Numbers inside arrays, wherever they are.
std::int64_t numbers_in_arrays(const Json& json) {
  std::int64_t numbers = 0;
  for (const Json& item : json) numbers += item.is_structured() ? numbers_in_arrays(item) : json.is_array() ? 1 : 0;
  return numbers;
}

TEST(JsonForm, size_is_known_beforehand) {
  for (const batchtext::Step& step : accepted()) {
    const Shown shown{step};
    EXPECT_EQ(cli::num_json_entries(shown.metadata()), numbers_in_arrays(cli::to_json(shown.built)));
  }
}

}  // namespace
