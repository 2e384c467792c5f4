// Every invariant stands in the list of those that have a planted fault: planted_all_ids S1,S2,...
#ifdef ATTNFUZZ_HAS_DEVICE
#include "properties/device/check.hpp"
#endif
#include "properties/invariants.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string caught = std::string{","} + argv[1] + ",";
  std::vector<std::string> ids{"E1", "E2", "E3"};
  for (const auto& invariant : properties::invariants()) ids.emplace_back(invariant.id);
#ifdef ATTNFUZZ_HAS_DEVICE
  for (const auto& claim : properties::device::claims()) ids.emplace_back(claim.id);
#endif
  int missing = 0;
  for (const std::string& id : ids) {
    if (caught.find("," + id + ",") != std::string::npos) continue;
    fmt::print("{} has no planted fault\n", id);
    ++missing;
  }
  fmt::print("{} invariants, {} without a planted fault\n", ids.size(), missing);
  return missing == 0 ? 0 : 1;
}
