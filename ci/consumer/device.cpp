#include <attn/device/device_metadata.hpp>

#include <iostream>

// Exit code 0 where the builder is made, and where no device is there to make it on: an Error says so.
int main() {
  const attn::device::Capacity capacity{.max_reqs = 8,
                                        .max_query_tokens = 64,
                                        .max_chunks = 4,
                                        .max_slices = 32,
                                        .max_context_tokens = 4096,
                                        .max_window_tokens = 4096};
  const auto builder = attn::device::DeviceMetadataBuilder::create(capacity);
  if (builder) {
    std::cout << "builder made\n";
    return 0;
  }
  std::cout << message(builder.error()) << '\n';
  return builder.error().kind == attn::Error::device ? 0 : 1;
}
