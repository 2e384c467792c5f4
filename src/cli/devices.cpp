#include "cli/commands.hpp"
#include "cli/json.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#ifndef ATTNFUZZ_HIP_NONE
#include <hip/hip_runtime_api.h>
#endif

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace cli {
namespace {

/// A call that HIP refused, with HIP's own words for it.
struct Refusal {
  std::string call;
  std::string name;
  std::string text;
};

struct Device {
  int number = 0;
  std::optional<Refusal> refusal{};  ///< why it does not answer; the rest is unknown then
  std::string name{};
  std::string arch{};  ///< empty where the runtime has no such thing
  int warp_size = 0;
  std::uint64_t memory_bytes = 0;
  int multiprocessors = 0;

  [[nodiscard]] bool answers() const { return !refusal; }
};

/// What is known of the HIP that is built in.
struct Runtime {
  std::string version{};              ///< empty when it does not say
  std::optional<Refusal> refusal{};   ///< why no device was asked
  std::string hint{};                 ///< what may be behind that, if anything
  std::vector<std::string> arches{};  ///< that kernels were compiled for; empty where they are the host's own
  std::vector<Device> devices{};

  [[nodiscard]] auto num_answering() const {
    return std::count_if(devices.begin(), devices.end(), [](const Device& device) { return device.answers(); });
  }
  /// Whether a kernel of this program runs on the device: its name may have features behind it, gfx90a:xnack-.
  [[nodiscard]] bool has_kernels_for(const Device& device) const {
    const std::string arch = device.arch.substr(0, device.arch.find(':'));
    return arches.empty() || std::find(arches.begin(), arches.end(), arch) != arches.end();
  }
};

constexpr std::string_view runtime_name = ATTNFUZZ_HIP_RUNTIME;

std::string_view description() {
  if (runtime_name == "sim") return "src/hipsim, on the host";
  if (runtime_name == "amd") return "HIP for AMD GPUs";
  if (runtime_name == "include") return "another HIP for the host";
  return "the CPU path alone";
}

#ifdef ATTNFUZZ_HIP_NONE

Runtime ask_runtime() {
  return {.refusal = Refusal{"", "none", "this program was built without HIP, ATTNFUZZ_HIP=none"}};
}

#else

std::optional<Refusal> refusal_of(std::string_view call, hipError_t error) {
  if (error == hipSuccess) return std::nullopt;
  return Refusal{std::string{call}, hipGetErrorName(error), hipGetErrorString(error)};
}

/// 50221153 as 5.2.21153, which is how HIP writes it in a number.
std::string version_of(int version) {
  constexpr int per_minor = 100000;
  constexpr int per_major = 100 * per_minor;
  if (version < per_major) return std::to_string(version);
  return fmt::format("{}.{}.{}", version / per_major, version % per_major / per_minor, version % per_minor);
}

/// Other implementations may know no such name.
template <class Properties>
std::string arch_of(const Properties& properties) {
  if constexpr (requires { properties.gcnArchName; }) {
    return properties.gcnArchName;
  } else {
    return "";
  }
}

Device ask_device(int number) {
  hipDeviceProp_t properties{};
  if (auto refusal = refusal_of("hipGetDeviceProperties", hipGetDeviceProperties(&properties, number)))
    return {.number = number, .refusal = std::move(refusal)};
  return {.number = number,
          .name = properties.name,
          .arch = arch_of(properties),
          .warp_size = properties.warpSize,
          .memory_bytes = properties.totalGlobalMem,
          .multiprocessors = properties.multiProcessorCount};
}

/// What stands between HIP and a card most often: the driver's file, missing or somebody else's.
std::string hint() {
  constexpr const char* driver = "/dev/kfd";
  if (runtime_name != "amd" || access(driver, R_OK | W_OK) == 0) return "";
  return fmt::format("{}: {}{}", driver, std::strerror(errno),
                     errno == EACCES ? " (users of the card are in the groups render and video)" : "");
}

Runtime ask_runtime() {
  Runtime runtime;
  int version = 0;
  if (hipRuntimeGetVersion(&version) == hipSuccess) runtime.version = version_of(version);
#ifdef ATTNFUZZ_HIP_GPU_TARGETS
  std::istringstream arches{ATTNFUZZ_HIP_GPU_TARGETS};
  for (std::string arch; arches >> arch;) runtime.arches.push_back(arch);
#endif
  int count = 0;
  runtime.refusal = refusal_of("hipGetDeviceCount", hipGetDeviceCount(&count));
  if (runtime.refusal || count == 0) runtime.hint = hint();
  if (runtime.refusal) return runtime;
  for (int number = 0; number < count; ++number) runtime.devices.push_back(ask_device(number));
  return runtime;
}

#endif

std::string text_of(const Refusal& refusal) {
  if (refusal.call.empty()) return refusal.text;
  // Older HIP has no other words for an error than its name.
  const std::string text = refusal.text == refusal.name ? "" : ", " + refusal.text;
  return fmt::format("{}: {}{}", refusal.call, refusal.name, text);
}

std::string line_of(const Runtime& runtime, const Device& device) {
  if (device.refusal) return fmt::format("device {}: no answer to {}\n", device.number, text_of(*device.refusal));
  constexpr double bytes_per_gib = 1024.0 * 1024 * 1024;
  std::string line = fmt::format("device {}: {}", device.number, device.name);
  if (!device.arch.empty()) line += ", " + device.arch;
  line += fmt::format(", {} threads a wavefront, {:.1f} GiB, {} multiprocessors", device.warp_size,
                      static_cast<double>(device.memory_bytes) / bytes_per_gib, device.multiprocessors);
  if (!runtime.has_kernels_for(device)) line += "; no kernel is compiled for it (ATTNFUZZ_GPU_TARGETS)";
  return line + "\n";
}

std::string text_of(const Runtime& runtime) {
  std::string text = fmt::format("runtime: {}, {}", runtime_name, description());
  if (!runtime.version.empty()) text += ", version " + runtime.version;
  if (!runtime.arches.empty()) text += fmt::format(", kernels for {}", fmt::join(runtime.arches, " "));
  text += "\n";
  for (const Device& device : runtime.devices) text += line_of(runtime, device);
  if (runtime.refusal)
    text += fmt::format("no device: {}\n", text_of(*runtime.refusal));
  else if (runtime.devices.empty())
    text += "no device: the runtime counts 0\n";
  if (!runtime.hint.empty()) text += runtime.hint + "\n";
  return text;
}

Json json_of(const std::optional<Refusal>& refusal) {
  if (!refusal) return nullptr;
  return {{"call", refusal->call}, {"name", refusal->name}, {"text", refusal->text}};
}

Json json_of(const Runtime& runtime, const Device& device) {
  if (device.refusal) return {{"number", device.number}, {"error", json_of(device.refusal)}};
  return {{"number", device.number},
          {"error", nullptr},
          {"name", device.name},
          {"arch", device.arch},
          {"warp_size", device.warp_size},
          {"memory_bytes", device.memory_bytes},
          {"multiprocessors", device.multiprocessors},
          {"has_kernels", runtime.has_kernels_for(device)}};
}

Json json_of(const Runtime& runtime) {
  Json devices = Json::array();
  for (const Device& device : runtime.devices) devices.push_back(json_of(runtime, device));
  return {{"runtime", runtime_name},           {"version", runtime.version}, {"arches", runtime.arches},
          {"error", json_of(runtime.refusal)}, {"hint", runtime.hint},       {"devices", devices}};
}

int devices(bool json) {
  const Runtime runtime = ask_runtime();
  fmt::print("{}", json ? json_of(runtime).dump(2) + "\n" : text_of(runtime));
  return runtime.num_answering() > 0 ? fine : finding;
}

}  // namespace

void add_devices(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("devices", "Which HIP runtime is built in, which devices answer, and why not");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "The same as JSON, for scripts");
  command->footer(
      "Examples:\n"
      "  attnfuzz devices\n"
      "  attnfuzz devices --json | jq -r '.devices[].arch'\n\n"
      "Exit codes: 0 a device answers, 1 none does.");
  command->callback([json, &exit_code] { exit_code = devices(*json); });
}

}  // namespace cli
