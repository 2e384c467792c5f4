#include "attn/context_parallel.hpp"

#include <algorithm>

namespace attn {

tl::expected<void, Error> dcp_local_seq_lens(std::span<const std::int32_t> seq_lens, std::int32_t dcp_size,
                                             std::int32_t rank, std::int32_t interleave,
                                             std::span<std::int32_t> local_seq_lens) noexcept {
  if (local_seq_lens.size() != seq_lens.size())
    return tl::unexpected(Error{Error::count_mismatch, -1, static_cast<std::int64_t>(local_seq_lens.size()),
                                static_cast<std::int64_t>(seq_lens.size())});
  if (dcp_size < 1) return tl::unexpected(Error{Error::invalid_dcp_size, -1, dcp_size, 1});
  if (rank < 0 || rank >= dcp_size) return tl::unexpected(Error{Error::invalid_rank, -1, rank, dcp_size});
  if (interleave < 1) return tl::unexpected(Error{Error::invalid_interleave, -1, interleave, 1});
  const auto negative = std::find_if(seq_lens.begin(), seq_lens.end(), [](std::int32_t len) { return len < 0; });
  if (negative != seq_lens.end())
    return tl::unexpected(Error{Error::negative_seq_len, negative - seq_lens.begin(), *negative, 0});

  // In 64 bits: a round of all ranks may be longer than int32 reaches.
  const std::int64_t turn = interleave;
  const std::int64_t round = turn * dcp_size;
  for (std::size_t i = 0; i < seq_lens.size(); ++i) {
    const std::int64_t whole_rounds = seq_lens[i] / round;
    const std::int64_t rest = seq_lens[i] % round;
    local_seq_lens[i] =
        static_cast<std::int32_t>(whole_rounds * turn + std::clamp<std::int64_t>(rest - rank * turn, 0, turn));
  }
  return {};
}

}  // namespace attn
