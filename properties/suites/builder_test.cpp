// What a builder promises besides its results: memory, limits, lifetimes.
#include "attn/local_attention.hpp"
#include "attn/metadata.hpp"
#include "batchtext/batchtext.hpp"
#include "properties/compare.hpp"
#include "properties/random_batch.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <utility>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define COUNTS_BY_HOOKS 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define COUNTS_BY_HOOKS 1
#endif

namespace {
std::atomic<std::int64_t> num_allocations{0};
}

#ifdef COUNTS_BY_HOOKS
#include <sanitizer/allocator_interface.h>
// AddressSanitizer owns malloc, and tells of every call.
namespace {
void on_malloc(const volatile void*, std::size_t) { ++num_allocations; }
void on_free(const volatile void*) {}
const int installed = __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
}  // namespace
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
#else
// The two ways the library can ask for memory.
extern "C" void* aligned_alloc(std::size_t alignment, std::size_t size) {
  ++num_allocations;
  void* block = nullptr;
  return posix_memalign(&block, alignment, size) == 0 ? block : nullptr;
}
void* operator new(std::size_t size) {
  ++num_allocations;
  if (void* block = std::malloc(size)) return block;
  throw std::bad_alloc{};
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }
#endif

namespace {

using attn::Error;

batchtext::Step step_of(std::string_view text) {
  const auto parsed = batchtext::parse("attnfuzz 1\n" + std::string{text});
  EXPECT_TRUE(parsed) << text;
  return parsed->steps.front();
}

template <class Action>
std::int64_t count_allocations(Action action) {
  const std::int64_t before = num_allocations;
  action();
  return num_allocations - before;
}

constexpr const char* large =
    "window_left 100\nworkspace_tokens 64\nbatch 8q1s90_q16s400_q16s300_4q12_2q0s9\nseq_lens_upper_bound batch";

TEST(Builder, a_cold_build_allocates) {
  // Without this the next test could count nothing at all.
  const batchtext::Arrays arrays{step_of(large)};
  attn::MetadataBuilder builder;
  EXPECT_GE(count_allocations([&] { ASSERT_TRUE(builder.build(arrays.batch())); }), 1);
}

TEST(Builder, a_warm_build_allocates_nothing) {
  const batchtext::Arrays first{step_of(large)};
  attn::MetadataBuilder builder;
  ASSERT_TRUE(builder.build(first.batch()));
  const std::int64_t count = count_allocations([&] { ASSERT_TRUE(builder.build(first.batch())); });
  EXPECT_EQ(count, 0);
  // Nor does any smaller batch, nor a refused one.
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    properties::Random random{seed};
    batchtext::Step step = properties::draw_step(random);
    const batchtext::Arrays arrays{step};
    attn::MetadataBuilder warm{1 << 11};
    static_cast<void>(warm.build(arrays.batch()));
    EXPECT_EQ(count_allocations([&] { static_cast<void>(warm.build(arrays.batch())); }), 0)
        << batchtext::print({{step}});
  }
}

TEST(Builder, metadata_stands_when_the_next_batch_is_refused) {
  const batchtext::Arrays good{step_of(large)};
  const batchtext::Arrays bad{step_of("batch q3_q3s9")};
  attn::MetadataBuilder builder;
  attn::MetadataBuilder other;
  const auto metadata = builder.build(good.batch());
  ASSERT_FALSE(builder.build(bad.batch()));
  EXPECT_FALSE(properties::compare(*metadata, *other.build(good.batch())));
}

TEST(Builder, metadata_moves_with_its_builder) {
  const batchtext::Arrays arrays{step_of(large)};
  attn::MetadataBuilder builder;
  const auto metadata = builder.build(arrays.batch());
  attn::MetadataBuilder moved{std::move(builder)};
  attn::MetadataBuilder assigned;
  assigned = std::move(moved);
  attn::MetadataBuilder other;
  EXPECT_FALSE(properties::compare(*metadata, *other.build(arrays.batch())));
  EXPECT_FALSE(properties::compare(*assigned.build(arrays.batch()), *other.build(arrays.batch())));
}

TEST(Builder, more_entries_than_its_limit_are_refused_with_both_numbers) {
  const batchtext::Arrays arrays{step_of(large)};
  attn::MetadataBuilder builder{100};
  const auto built = builder.build(arrays.batch());
  ASSERT_FALSE(built);
  EXPECT_EQ(built.error().kind, Error::capacity_exceeded);
  EXPECT_GT(built.error().value, 100);
  EXPECT_EQ(built.error().limit, 100);
  attn::MetadataBuilder exact{built.error().value};
  EXPECT_TRUE(exact.build(arrays.batch())) << "the number named is enough";
}

TEST(Builder, more_passes_than_int32_holds_are_refused) {
  const batchtext::Arrays arrays{step_of("workspace_tokens 1\nchunk_policy packed\nbatch 4q2s2147483647")};
  attn::MetadataBuilder builder{std::int64_t{1} << 62};
  const auto built = builder.build(arrays.batch());
  ASSERT_FALSE(built);
  EXPECT_EQ(built.error(), (Error{Error::capacity_exceeded, -1, std::int64_t{4} * 2147483645, 2147483647}));
}

TEST(Builder, no_memory_is_an_error_and_the_builder_goes_on) {
  // 2^15 passes over 2^15 extends: more bytes than an address space has, and than any limit lets through.
  std::string text = "workspace_tokens 32768\nbatch 32768q2s2000000000";
  const batchtext::Arrays arrays{step_of(text)};
  const batchtext::Arrays good{step_of(large)};
  attn::MetadataBuilder builder{std::int64_t{1} << 62};
  ASSERT_TRUE(builder.build(good.batch()));
  const auto built = builder.build(arrays.batch());
  ASSERT_FALSE(built);
  EXPECT_EQ(built.error(), (Error{Error::out_of_memory, -1, built.error().value, 0}))
      << "of no request, without a limit";
  EXPECT_GT(built.error().value, std::int64_t{1} << 40);
  EXPECT_TRUE(builder.build(good.batch()));
}

TEST(Builder, sizes_beyond_64_bits_saturate) {
  attn::ChunkPlan plan;
  plan.num_extends = 2147483647;
  plan.num_chunks = 2147483647;
  plan.total_tokens = std::int64_t{1} << 61;
  EXPECT_GT(plan.num_entries(), std::int64_t{1} << 60);
}

TEST(Builder, local_attention_is_warm_too) {
  const std::vector<std::int32_t> offsets{0, 4, 9};
  const std::vector<std::int32_t> lens{40, 30};
  const std::vector<std::int32_t> blocks(20, 7);
  attn::LocalAttentionInput input;
  input.attn_chunk_size = 8;
  input.block_size = 4;
  input.query_start_loc = offsets;
  input.seq_lens = lens;
  input.block_table = {blocks, 10};
  attn::LocalAttentionBuilder builder;
  ASSERT_TRUE(builder.build(input));
  EXPECT_EQ(count_allocations([&] { ASSERT_TRUE(builder.build(input)); }), 0);
}

}  // namespace
