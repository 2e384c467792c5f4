#pragma once

#include "batchtext/batchtext.hpp"

#include <cstddef>
#include <functional>
#include <vector>

/// Small changes to a step that keep its arrays in step with its requests: used by shrinking and by the mutator.
namespace properties {

/// Takes request `at` away, and its entry in raw lengths that have one for each request.
void drop_request(batchtext::Step& step, std::size_t at);

/// Puts a request in front of position `at`; raw lengths get its seq_len.
void insert_request(batchtext::Step& step, std::size_t at, const batchtext::Request& request);

/// Sets a request's lengths; raw lengths follow so that a bound stays a bound.
void set_request(batchtext::Step& step, std::size_t at, const batchtext::Request& request);

/// Exchanges two requests with their entries.
void swap_requests(batchtext::Step& step, std::size_t a, std::size_t b);

/// Brings the requests in the order decode, extend, prefill, padding, and cuts them where their tokens or
/// count leave what a text can hold. Raw offsets and scalars go: what the requests imply is right.
void put_in_order(batchtext::Step& step);

/// Whether the step's batch breaks no rule but those on sizes.
[[nodiscard]] bool is_legal(const batchtext::Step& step);
[[nodiscard]] bool is_legal(const batchtext::Case& parsed);

/// Calls `visit` with each case a little smaller than this one, the smallest first, until it returns false: a step,
/// half the requests, a request less, a length halved, moved to a boundary or down by one, a setting back to its
/// default.
void for_each_smaller(const batchtext::Case& parsed, const std::function<bool(batchtext::Case&&)>& visit);

/// All of them; of a legal case only legal ones.
[[nodiscard]] std::vector<batchtext::Case> smaller_cases(const batchtext::Case& parsed);

}  // namespace properties
