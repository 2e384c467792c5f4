#include "attn/reorder.hpp"

#include "attn/checked.hpp"

#include <array>
#include <optional>

namespace attn {
namespace {

enum RequestClass : std::int32_t { decode, short_extend, long_extend, prefill };
constexpr std::int32_t num_classes = prefill + 1;

/// Classes by request and by position, without storing either.
struct Classes {
  std::span<const std::int32_t> scheduled;
  std::span<const std::int32_t> computed;
  std::span<const std::int32_t> prompt;  ///< may be empty
  std::int32_t threshold;
  std::array<std::size_t, num_classes> count{};

  [[nodiscard]] std::int32_t of_request(std::size_t req) const noexcept {
    if (computed[req] == 0) return prefill;
    if (scheduled[req] > threshold) return long_extend;
    return !prompt.empty() && computed[req] < prompt[req] ? short_extend : decode;
  }
  [[nodiscard]] std::int32_t of_position(std::size_t position) const noexcept {
    std::int32_t region = decode;
    for (std::size_t end = count[decode]; region < prefill && position >= end;)
      end += count[static_cast<std::size_t>(++region)];
    return region;
  }
  [[nodiscard]] bool is_misplaced(std::size_t req) const noexcept { return of_request(req) != of_position(req); }
};

std::optional<Error> check(std::span<const std::int32_t> counts) noexcept {
  for (std::size_t i = 0; i < counts.size(); ++i)
    if (counts[i] < 0) return Error{Error::negative_token_count, static_cast<std::int64_t>(i), counts[i], 0};
  return std::nullopt;
}

/// Walks the misplaced requests of one class after the other, in order.
class Movers {
 public:
  explicit Movers(const Classes& classes) noexcept : classes_(classes) {}

  std::size_t next() noexcept {
    while (true) {
      for (; at_ < classes_.scheduled.size(); ++at_)
        if (classes_.of_request(at_) == class_ && classes_.is_misplaced(at_)) return at_++;
      ++class_;
      at_ = 0;
    }
  }

 private:
  const Classes& classes_;
  std::int32_t class_ = decode;
  std::size_t at_ = 0;
};

}  // namespace

tl::expected<bool, Error> reorder_batch(std::span<const std::int32_t> num_scheduled_tokens,
                                        std::span<const std::int32_t> num_computed_tokens,
                                        std::span<const std::int32_t> num_prompt_tokens, std::int32_t decode_threshold,
                                        std::span<std::int32_t> order) noexcept {
  const std::size_t num_reqs = num_scheduled_tokens.size();
  if (num_reqs > static_cast<std::size_t>(int32_limit))
    return tl::unexpected(Error{Error::capacity_exceeded, -1, static_cast<std::int64_t>(num_reqs), int32_limit});
  const auto mismatch = [&](std::size_t count) {
    return tl::unexpected(
        Error{Error::count_mismatch, -1, static_cast<std::int64_t>(count), static_cast<std::int64_t>(num_reqs)});
  };
  if (num_computed_tokens.size() != num_reqs) return mismatch(num_computed_tokens.size());
  if (!num_prompt_tokens.empty() && num_prompt_tokens.size() != num_reqs) return mismatch(num_prompt_tokens.size());
  if (order.size() != num_reqs) return mismatch(order.size());
  if (decode_threshold < 0) return tl::unexpected(Error{Error::invalid_decode_threshold, -1, decode_threshold, 0});
  if (auto error = check(num_scheduled_tokens)) return tl::unexpected(*error);
  if (auto error = check(num_computed_tokens)) return tl::unexpected(*error);
  if (auto error = check(num_prompt_tokens)) return tl::unexpected(*error);

  Classes classes{num_scheduled_tokens, num_computed_tokens, num_prompt_tokens, decode_threshold};
  for (std::size_t req = 0; req < num_reqs; ++req) ++classes.count[static_cast<std::size_t>(classes.of_request(req))];

  bool modified = false;
  Movers movers{classes};
  for (std::size_t position = 0; position < num_reqs; ++position) {
    const bool moves = classes.is_misplaced(position);
    order[position] = static_cast<std::int32_t>(moves ? movers.next() : position);
    modified |= moves;
  }
  return modified;
}

}  // namespace attn
