#include "cli/device_path.hpp"

#include "cli/commands.hpp"

#ifdef ATTNFUZZ_HIP_NONE

namespace cli {

std::optional<std::string> no_device_path() { return "this program was built without HIP (ATTNFUZZ_HIP=none)"; }
std::int64_t num_left_out_on_device(const batchtext::Case&) { return 0; }
std::optional<properties::Finding> check_on_device(const batchtext::Case&) { return std::nullopt; }
void show_from_device(
    const batchtext::Step&,
    const std::function<void(const tl::expected<attn::Metadata, attn::Error>&, const std::string&)>&) {
  throw InputError(*no_device_path());
}

}  // namespace cli

#else

#include "properties/device/check.hpp"
#include "properties/device/run.hpp"

#include <fmt/format.h>

namespace cli {
namespace {

namespace device = properties::device;
/// Array entries of a batch: enough for every batch of a real server, and built in seconds.
constexpr std::int64_t max_entries_on_device = std::int64_t{1} << 20;
using Built = tl::expected<attn::Metadata, attn::Error>;

std::string text_of(const attn::device::DeviceScalars& scalars) {
  std::string text = "numbers that only the device knows\n";
  constexpr const char* regions[]{"decode", "extend", "prefill"};
  for (int region = 0; region < 3; ++region)
    text += fmt::format("  {:<8} seq_len {} to {}\n", regions[region], scalars.min_seq_len[region],
                        scalars.max_seq_len[region]);
  text += fmt::format("  kv tokens {}, passes with a token {}", scalars.num_kv_tokens, scalars.num_chunks);
  if (scalars.window_total_tokens > 0)
    text += fmt::format(", window keys {}, longest window {}", scalars.window_total_tokens, scalars.window_max_seq_len);
  if (scalars.num_clamped > 0) text += fmt::format(", lengths outside their bounds {}", scalars.num_clamped);
  return text + "\n";
}

std::unique_ptr<device::DeviceBatch> batch_of(const batchtext::Step& step) {
  auto batch = step.seq_lens_upper_bound.source == batchtext::Lens::none
                   ? nullptr
                   : device::DeviceBatch::make(step, device::LengthKind::exact);
  return batch ? std::move(batch) : device::DeviceBatch::make(step, device::LengthKind::host);
}

}  // namespace

std::optional<std::string> no_device_path() { return device::no_device(); }

std::int64_t num_left_out_on_device(const batchtext::Case& parsed) {
  return device::num_left_out(parsed, max_entries_on_device);
}

std::optional<properties::Finding> check_on_device(const batchtext::Case& parsed) {
  // A case is built some twenty times, thread by thread where the device is simulated.
  return device::check_case(parsed, {.max_entries = max_entries_on_device});
}

void show_from_device(const batchtext::Step& step, const std::function<void(const Built&, const std::string&)>& show) {
  try {
    const auto batch = batch_of(step);
    // Refused with the CPU path's words, its limit of entries among them.
    attn::MetadataBuilder host_builder{max_entries_on_device};
    if (const auto host = host_builder.build(batch->host()); !host) return show(host, "");
    auto capacity = attn::device::required_capacity(batch->host());
    if (!capacity) return show(tl::unexpected(capacity.error()), "");
    if (capacity->max_query_tokens > max_entries_on_device)
      throw InputError(fmt::format("{} query tokens, --device shows batches of {} at most", capacity->max_query_tokens,
                                   max_entries_on_device));
    capacity->captures = false;
    capacity->builds_in_flight = 1;
    const device::Stream stream;
    auto builder = attn::device::DeviceMetadataBuilder::create(*capacity);
    if (!builder) throw InputError(attn::message(builder.error()));
    batch->upload();
    const auto built = builder->build(batch->host(), batch->lengths(), stream.get());
    if (!built) throw InputError(attn::message(built.error()));
    const auto found = device::download(*built, stream);
    show(found.metadata, text_of(found.scalars));
  } catch (const device::HipFailure& failure) {
    throw InputError(failure.what());
  }
}

}  // namespace cli

#endif
