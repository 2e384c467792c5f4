#pragma once

#include <hip/hip_runtime.h>

#include <hipsim/hipsim.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

// What the suites share: a clean runtime for each test, reports that are collected instead of aborting, and the calls
// that every test would otherwise spell out.

inline void PrintTo(hipError_t error, std::ostream* out) { *out << hipGetErrorName(error); }

namespace hipsim {
inline void PrintTo(Rules rules, std::ostream* out) { *out << name(rules); }
}  // namespace hipsim

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HIPSIM_TEST_ADDRESS_SANITIZER
#endif
#if __has_feature(thread_sanitizer)
#define HIPSIM_TEST_THREAD_SANITIZER
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) && !defined(HIPSIM_TEST_ADDRESS_SANITIZER)
#define HIPSIM_TEST_ADDRESS_SANITIZER
#endif
#if defined(__SANITIZE_THREAD__) && !defined(HIPSIM_TEST_THREAD_SANITIZER)
#define HIPSIM_TEST_THREAD_SANITIZER
#endif

namespace hipsim_test {

#if defined(HIPSIM_TEST_ADDRESS_SANITIZER)
inline constexpr bool has_address_sanitizer = true;
#else
inline constexpr bool has_address_sanitizer = false;
#endif
#if defined(HIPSIM_TEST_THREAD_SANITIZER)
inline constexpr bool has_thread_sanitizer = true;
#else
inline constexpr bool has_thread_sanitizer = false;
#endif

inline std::vector<hipsim::Report> reports;

inline void collect(const hipsim::Report& report) { reports.push_back(report); }

/// The one report there is, which must have this kind. Takes it, so that none is left over.
inline std::string take_report(hipsim::Report::Kind kind, HIPSIM_PLACE) {
  const std::vector<hipsim::Report> taken = std::move(reports);
  reports.clear();
  if (taken.size() == 1 && taken.front().kind == kind) return taken.front().text;
  std::string got;
  for (const hipsim::Report& report : taken) got += std::string{"\n  "} + name(report.kind) + ": " + report.text;
  ADD_FAILURE_AT(place.file, place.line) << "expected one report, " << name(kind) << ", got " << taken.size() << got;
  return {};
}

/// The call is expected to succeed.
inline void must(hipError_t error, HIPSIM_PLACE) {
  if (error == hipSuccess) return;
  ADD_FAILURE_AT(place.file, place.line) << hipGetErrorName(error) << ": " << hipsim::last_message();
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

template <class T>
T* device_array(std::size_t count, HIPSIM_PLACE) {
  T* made = nullptr;
  must(hipMalloc(&made, count * sizeof(T), place), place);
  return made;
}

template <class T>
T* pinned_array(std::size_t count, HIPSIM_PLACE) {
  T* made = nullptr;
  must(hipHostMalloc(&made, count * sizeof(T), hipHostMallocDefault, place), place);
  return made;
}

template <class T>
T* device_copy(const std::vector<T>& values, HIPSIM_PLACE) {
  T* made = device_array<T>(values.size(), place);
  must(hipMemcpy(made, values.data(), values.size() * sizeof(T), hipMemcpyHostToDevice, place), place);
  return made;
}

template <class T>
std::vector<T> host_copy(const T* device, std::size_t count, HIPSIM_PLACE) {
  std::vector<T> values(count);
  must(hipMemcpy(values.data(), device, count * sizeof(T), hipMemcpyDeviceToHost, place), place);
  return values;
}

inline hipStream_t make_stream(unsigned int flags = hipStreamDefault, HIPSIM_PLACE) {
  hipStream_t stream = nullptr;
  must(hipStreamCreateWithFlags(&stream, flags, place), place);
  return stream;
}

inline hipEvent_t make_event(HIPSIM_PLACE) {
  hipEvent_t event = nullptr;
  must(hipEventCreate(&event, place), place);
  return event;
}

inline void configure(std::uint64_t seed, hipsim::Mode mode = hipsim::Mode::lazy, int warp_size = 64) {
  hipsim::Config config;
  config.seed = seed;
  config.mode = mode;
  config.warp_size = warp_size;
  EXPECT_TRUE(hipsim::configure(config));
}

inline void follow_rules(hipsim::Rules rules) {
  hipsim::Config config = hipsim::config();
  config.rules = rules;
  EXPECT_TRUE(hipsim::configure(config));
}

/// Nothing of one test reaches the next, and a report that a test did not ask for fails it.
class Runtime : public testing::Test {
 protected:
  void SetUp() override { start_over(); }
  void TearDown() override {
    for (const hipsim::Report& report : reports) ADD_FAILURE() << name(report.kind) << ": " << report.text;
    hipsim::reset();
  }
  static void start_over() {
    hipsim::reset();
    reports.clear();
    hipsim::set_report_handler(collect);
  }
};

}  // namespace hipsim_test
