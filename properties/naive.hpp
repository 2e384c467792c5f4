#pragma once

#include "attn/metadata.hpp"

#include <cstdint>
#include <optional>
#include <vector>

/// The second implementation: slow, plain, written from the definitions of design.md, without a look at src/attn.
/// For batches that break no rule.
namespace properties::naive {

enum class RowClass : std::uint8_t { decode, extend, prefill, padding };

struct Row {
  std::int32_t query_len = 0;
  RowClass row_class = RowClass::decode;
  bool is_padding = false;                    ///< no query token, and none in any row behind it
  std::optional<std::int32_t> class_seq_len;  ///< what the class was decided by
  std::optional<std::int32_t> seq_len;        ///< exact, else the bound
  std::int32_t context = 0;                   ///< 0 where no length is known
};

/// Each request of the batch with its class.
[[nodiscard]] std::vector<Row> rows_of(const attn::Batch& batch);

/// The context of each extend.
[[nodiscard]] std::vector<std::int64_t> contexts_of(const std::vector<Row>& rows);

/// A token of the extends' contexts.
struct ContextToken {
  std::int32_t extend = 0;
  std::int32_t position = 0;

  friend bool operator==(const ContextToken&, const ContextToken&) = default;
};

struct Region {
  std::int32_t num_reqs = 0;
  std::int64_t num_tokens = 0;
  std::int32_t max_query_len = 0;
  std::int32_t min_query_len = 0;
  std::int32_t max_seq_len = 0;
  std::int32_t min_seq_len = 0;
  std::vector<std::int32_t> query_start_loc{0};
};

struct Window {
  std::int32_t start = 0;
  std::int32_t len = 0;
};

struct Metadata {
  Region decode;
  Region extend;
  Region prefill;
  std::int32_t num_padding = 0;
  std::int64_t num_decode_tokens = 0;   ///< of the split: surplus tokens too, when no row is longer than a decode
  std::int64_t num_padding_tokens = 0;  ///< surplus tokens that belong to nobody
  std::vector<std::vector<ContextToken>> passes;  ///< the tokens of each pass, in workspace order
  std::vector<Window> windows;                    ///< of each extend, when the batch has a window
  std::int64_t num_kv_tokens = 0;
};

/// `rows` are `rows_of(batch)`.
[[nodiscard]] Metadata build(const attn::Batch& batch, const std::vector<Row>& rows);

/// Passes over contexts of these lengths, counted without laying out tokens. 0 without context, or without a plan. The
/// workspace has room for least_workspace.
[[nodiscard]] std::int64_t count_passes(const std::vector<std::int64_t>& contexts, const attn::Config& config);

/// Workspace that a plan for this many extends needs at least, where any of them has a context.
[[nodiscard]] std::int64_t least_workspace(std::int64_t num_extends, const attn::Config& config);

}  // namespace properties::naive
