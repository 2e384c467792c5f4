#pragma once

#include "attn/checked.hpp"

#include <algorithm>
#include <cstdint>

namespace attn {

/// How vLLM's planner for MLA cuts contexts, slice by slice: requests in order fill a chunk until a context does not
/// fit whole; that one is cut at the largest multiple of the alignment that fits, and a cut ends its chunk. A request
/// without context ends one too.
///
/// Under context parallelism the tokens of a slice are dealt to `num_ranks` ranks in turns of `interleave`; what counts
/// is the room on a rank, padded to whole turns.
struct MlaCutRule {
  std::int64_t workspace_tokens = 0;  ///< of all ranks; at least `alignment` where there is a context
  std::int64_t alignment = 1;         ///< a multiple of num_ranks * interleave where there are several ranks
  std::int64_t num_ranks = 1;
  std::int64_t interleave = 1;

  /// Tokens that one rank may gather in a chunk.
  [[nodiscard]] std::int64_t room() const noexcept { return workspace_tokens / num_ranks; }
  /// Room that a slice of `len` tokens takes on a rank.
  [[nodiscard]] std::int64_t padded_len(std::int64_t len) const noexcept {
    return num_ranks == 1 ? len : ceil_div(len, num_ranks * interleave) * interleave;
  }
  /// The longest slice that ends on the alignment and takes no more than `room` on a rank.
  [[nodiscard]] std::int64_t longest_cut(std::int64_t room) const noexcept {
    return room * num_ranks / alignment * alignment;
  }
};

/// `count` slices of one context, each behind the one before: of `len` tokens, the first from `start`.
struct MlaRun {
  std::int64_t req = 0;
  std::int64_t start = 0;
  std::int64_t len = 0;
  std::int64_t count = 0;
  bool opens_chunk = false;  ///< the first of them; all others do
};

/// Cuts the contexts `context_of(0)` to `context_of(num_reqs - 1)`, all >= 0. Linear in requests, however many chunks
/// there are, because whole chunks of one context are one run.
template <class ContextOf>
class MlaCutter {
 public:
  MlaCutter(const MlaCutRule& rule, std::int64_t num_reqs, ContextOf context_of) noexcept
      : rule_(rule), num_reqs_(num_reqs), context_of_(context_of), room_(rule.room()) {}

  /// False when every token has been gathered.
  [[nodiscard]] bool next(MlaRun& run) noexcept {
    while (req_ < num_reqs_) {
      const std::int64_t rest = context_of_(req_) - start_;
      const std::int64_t padded = rule_.padded_len(rest);
      const std::int64_t cut = rule_.longest_cut(room_);
      if (rest == 0) {
        open_chunk();
        advance();
      } else if (padded <= room_) {
        run = {req_, start_, rest, 1, is_fresh_};
        room_ -= padded;
        is_fresh_ = false;
        advance();
        return true;
      } else if (cut == 0) {
        open_chunk();
      } else {
        // A cut takes the same room on every rank, so that only what is beyond the room of a last chunk is cut.
        const std::int64_t count = is_fresh_ ? ceil_div(padded - room_, cut / rule_.num_ranks) : 1;
        run = {req_, start_, cut, count, is_fresh_};
        start_ += cut * count;
        open_chunk();
        return true;
      }
    }
    return false;
  }

 private:
  void open_chunk() noexcept {
    room_ = rule_.room();
    is_fresh_ = true;
  }
  void advance() noexcept {
    ++req_;
    start_ = 0;
  }

  MlaCutRule rule_;
  std::int64_t num_reqs_;
  ContextOf context_of_;
  std::int64_t req_ = 0;
  std::int64_t start_ = 0;  ///< tokens of the request's context that are gathered
  std::int64_t room_;       ///< that is left in the chunk on a rank
  bool is_fresh_ = true;    ///< nothing is in the chunk
};

}  // namespace attn
