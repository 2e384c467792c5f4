#include "properties/check.hpp"

#include "properties/errors.hpp"
#include "properties/naive.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <iterator>

namespace properties {
namespace {

using naive::Row;
using naive::RowClass;

std::string_view name_of(RowClass row_class) {
  switch (row_class) {
    case RowClass::decode:
      return "decode";
    case RowClass::extend:
      return "extend";
    case RowClass::prefill:
      return "prefill";
    case RowClass::padding:
      return "padding";
  }
  return "";
}

std::string text_of(std::span<const std::int32_t> values) {
  constexpr std::size_t most = 32;  // a malformed array is told by its start
  const auto shown = values.first(std::min(values.size(), most));
  return fmt::format("[{}{}]", fmt::join(shown, ", "),
                     values.size() > most ? fmt::format(", ... {} entries", values.size()) : "");
}

std::string length_of(const std::optional<std::int32_t>& value) { return value ? std::to_string(*value) : "-"; }

bool looks_the_same(const Row& a, const Row& b) {
  return a.query_len == b.query_len && a.row_class == b.row_class && a.class_seq_len == b.class_seq_len &&
         a.seq_len == b.seq_len;
}

std::string rows_table(const std::vector<Row>& rows) {
  constexpr int most = 40;  // lines; a report is read, not scrolled through
  std::string text = "  requests        q          s      bound    context  class\n";
  int lines = 0;
  for (std::size_t i = 0; i < rows.size() && lines < most; ++lines) {
    std::size_t end = i + 1;
    while (end < rows.size() && looks_the_same(rows[end], rows[i])) ++end;
    const std::string which = end - i == 1 ? std::to_string(i) : fmt::format("{}-{}", i, end - 1);
    fmt::format_to(std::back_inserter(text), "  {:>8} {:>8} {:>10} {:>10} {:>10}  {}\n", which, rows[i].query_len,
                   length_of(rows[i].seq_len), length_of(rows[i].class_seq_len), rows[i].context,
                   name_of(rows[i].row_class));
    i = end;
    if (lines + 1 == most && i < rows.size()) text += fmt::format("  ... and {} more requests\n", rows.size() - i);
  }
  return text;
}

std::string raw_table(const attn::Batch& batch) {
  return fmt::format("  num_reqs {}\n  query_start_loc {}\n  seq_lens {}\n  seq_lens_upper_bound {}\n", batch.num_reqs,
                     text_of(batch.query_start_loc), text_of(batch.seq_lens), text_of(batch.seq_lens_upper_bound));
}

bool has_sound_rows(const attn::Batch& batch) {
  // Rows can be told apart once counts and offsets are right; the lengths may say anything.
  const ErrorKinds broken = broken_rules(batch, default_max_entries);
  for (const auto kind : {attn::Error::negative_num_reqs, attn::Error::offsets_count, attn::Error::seq_lens_count,
                          attn::Error::upper_bound_count, attn::Error::offsets_start, attn::Error::offsets_decreasing})
    if (broken[kind]) return false;
  return true;
}

std::string identifier_of(const Finding& finding) {
  std::string name = finding.id + "_" + finding.where;
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  constexpr std::size_t longest = 60;
  return name.substr(0, longest);
}

}  // namespace

std::string table(const batchtext::Step& step) {
  const batchtext::Arrays arrays{step};
  const attn::Batch& batch = arrays.batch();
  const attn::Config& config = batch.config;
  std::string text = fmt::format(
      "  decode_threshold {}, workspace_tokens {}, {}, chunk_alignment {}, window_left {}\n  num_actual_tokens {}, "
      "max_query_len {}, "
      "max_seq_len {}\n",
      config.decode_threshold, config.workspace_tokens, attn::name(config.chunk_policy), config.chunk_alignment,
      length_of(config.window_left), batch.num_actual_tokens, batch.max_query_len, batch.max_seq_len);
  if (step.schedule_seed != 0 || step.fail_call)
    text += fmt::format("  schedule_seed {}, fail_call {}\n", step.schedule_seed, length_of(step.fail_call));
  text += has_sound_rows(batch) ? rows_table(naive::rows_of(batch)) : raw_table(batch);
  return text;
}

std::string regression(const Finding& finding, const batchtext::Case& parsed) {
  const std::string text = batchtext::print(parsed);
  const std::string name = identifier_of(finding);
  const bool of_device = finding.id.starts_with("D");
  const std::string test =
      of_device
          ? fmt::format("device_test.cpp:\nTEST_F(Device, {}) {{\n  EXPECT_HOLDS_ON_DEVICE(R\"({})\");\n}}\n", name,
                        text)
          : fmt::format("regression_test.cpp:\nTEST(Regression, {}) {{\n  EXPECT_HOLDS(R\"({})\");\n}}\n", name, text);
  return fmt::format("corpus/regressions/{}.batch:\n# {}: {}. {}: {}\n{}\nproperties/suites/{}", name, finding.id,
                     finding.claim, finding.where, finding.difference, text, test);
}

std::string report(const Finding& finding, const batchtext::Case& parsed, std::string_view command,
                   std::string_view shrinking) {
  std::string text = fmt::format("FINDING {}: {}\nwhere:   {}\ndiffers: {}\n", finding.id, finding.claim, finding.where,
                                 finding.difference);
  for (std::size_t i = 0; i < parsed.steps.size(); ++i) {
    text += parsed.steps.size() > 1 ? fmt::format("batch of step {}:\n", i + 1) : "batch:\n";
    text += table(parsed.steps[i]);
  }
  if (!shrinking.empty()) text += fmt::format("shrunk:  {}\n", shrinking);
  text += fmt::format("repeat:  {}\nregression, ready to paste:\n{}", command, regression(finding, parsed));
  return text;
}

}  // namespace properties
