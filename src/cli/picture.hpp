#pragma once

#include "attn/metadata.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// A batch and its metadata as people look at them: what there is to draw, and the picture of it for a terminal.
namespace cli {

/// The place of a request in its batch: one of the three regions, or the padding behind them.
enum class Part : std::uint8_t { decode, extend, prefill, padding };
inline constexpr std::size_t num_parts = 4;

[[nodiscard]] std::string_view name(Part part) noexcept;

/// "1 decode", "8 decodes", "3 padding"; `count` as the caller wrote it.
[[nodiscard]] std::string counted(std::int64_t count, std::string_view written, std::string_view noun);

struct PartSize {
  Part part = Part::decode;
  std::int64_t num_reqs = 0;
  std::int64_t num_tokens = 0;
};

/// The parts in batch order, empty ones too.
[[nodiscard]] std::array<PartSize, num_parts> part_sizes(const attn::Split& split) noexcept;

/// Deals `cells` out in proportion to `sizes`: 0 for a size of 0, at least 1 for every other. They sum to `cells`
/// wherever there are as many as sizes above 0. The rounding is borne by the largest.
[[nodiscard]] std::vector<std::int64_t> apportion(std::span<const std::int64_t> sizes, std::int64_t cells);

/// The same for the parts by their tokens: 0 for a part without requests, at least 1 for any other.
[[nodiscard]] std::vector<std::int64_t> apportion_parts(const attn::Split& split, std::int64_t cells);

/// Requests [first, first + count) of one part, drawn in one row.
struct RequestRow {
  Part part = Part::decode;
  std::int32_t first = 0;
  std::int32_t count = 1;
  std::int32_t longest = 0;  ///< the request with the most tokens: what a bar is drawn of
  std::int32_t min_query_len = 0;
  std::int32_t max_query_len = 0;
  bool has_seq_len = false;  ///< padding has none, a decode-only batch may come without
  std::int32_t min_seq_len = 0;
  std::int32_t max_seq_len = 0;
};

/// All requests in batch order, in at most `max_rows` rows (>= 5): a row for each extend and for each run of equal
/// others; where that is too much one for each run; where that still is too much one for all decodes, one for all
/// prefills, and one for the extends that are left over.
[[nodiscard]] std::vector<RequestRow> request_rows(const attn::Batch& batch, const attn::Metadata& metadata,
                                                   std::size_t max_rows);

/// The tokens of a request, from its first on.
struct RequestBar {
  std::int64_t behind_window = 0;  ///< context that the window has left behind
  std::int64_t context = 0;        ///< the rest of the context: all of it without a window
  std::int64_t query = 0;

  [[nodiscard]] std::int64_t tokens() const noexcept { return behind_window + context + query; }
};

[[nodiscard]] RequestBar request_bar(const attn::Batch& batch, const attn::Metadata& metadata,
                                     std::int32_t req) noexcept;

/// Chunks [first, first + count), drawn in one row.
struct ChunkRow {
  std::int32_t first = 0;
  std::int32_t count = 1;
  bool alike = true;  ///< all cut alike, so that a bar of the first stands for all
};

/// All chunks in order, in at most `max_rows` rows (>= 1): a row for each; where that is too much one for each run of
/// chunks with equal slices; where that still is too much the last row holds all that are left.
[[nodiscard]] std::vector<ChunkRow> chunk_rows(const attn::ChunkedContext& context, std::size_t max_rows);

/// "A" to "Z", then from "A" again.
[[nodiscard]] std::string_view extend_letter(std::int64_t extend) noexcept;

/// How full: rounded down, so that only a full one reads "100%"; "<1%" where anything is in it at all.
[[nodiscard]] std::string percent(std::int64_t part, std::int64_t whole);

/// "7", or "1..4" where the two differ.
[[nodiscard]] std::string range(std::int64_t low, std::int64_t high);

/// `text` as valid UTF-8 without control characters, each of which becomes U+FFFD: file names may hold any bytes.
[[nodiscard]] std::string printable(std::string_view text);

/// `text` printable and at most `max_letters` long: its middle makes way for an ellipsis. Names may be paths, which
/// tell most at their ends, or batches of a thousand requests.
[[nodiscard]] std::string shortened(std::string_view text, std::size_t max_letters);

/// Where a picture is drawn.
struct Canvas {
  int columns = 100;
  bool colour = false;  ///< ANSI colours; every picture reads without
};

/// Labels and a bar worth looking at need this much; narrower canvases get pictures this wide.
inline constexpr int min_columns = 40;
/// A picture scrolls past one screen at most.
inline constexpr int max_picture_lines = 40;

/// The batch, its requests and its chunks as bars. No line is wider than max(columns, min_columns), and there are at
/// most max_picture_lines of them.
[[nodiscard]] std::string picture(const attn::Batch& batch, const attn::Metadata& metadata, const Canvas& canvas);

/// The metadata in numbers: regions, KV tokens, chunks with their slices, windows. Long lists end in a count of what
/// was left out.
[[nodiscard]] std::string metadata_table(const attn::Batch& batch, const attn::Metadata& metadata);

}  // namespace cli
