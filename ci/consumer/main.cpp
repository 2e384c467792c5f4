#include <attn/metadata.hpp>

#include <array>
#include <cstdint>
#include <iostream>

int main() {
  // Three new tokens behind 4,096 in the cache, a workspace of 1,024: four chunks.
  const std::array<std::int32_t, 2> query_start_loc{0, 3};
  const std::array<std::int32_t, 1> seq_lens{4099};
  attn::MetadataBuilder builder;
  const auto metadata = builder.build({.num_reqs = 1,
                                       .query_start_loc = query_start_loc,
                                       .seq_lens = seq_lens,
                                       .seq_lens_upper_bound = {},
                                       .num_actual_tokens = 3,
                                       .max_query_len = 3,
                                       .max_seq_len = 4099,
                                       .config = {.workspace_tokens = 1024}});
  if (!metadata) {
    std::cerr << message(metadata.error()) << '\n';
    return 1;
  }
  std::cout << "chunks " << metadata->context.num_chunks << '\n';
}
