#pragma once

#include "attn/metadata.hpp"

#include <tl/expected.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace cli {

/// An SVG drawing of steps, one below the other: the regions, the requests, the chunks over the workspace. One
/// document that needs nothing besides itself and follows the reader's light or dark scheme.
///
/// However large the batches, a step takes at most a few hundred kilobytes: equal neighbours share a row, rows and
/// steps are capped with a note, and slices too narrow to see are drawn as one.
class Drawing {
 public:
  /// Steps drawn; of the others only the number is told. Past that nobody scrolls.
  static constexpr std::int64_t max_steps = 32;

  /// Adds what the builder made of `batch`: its metadata, or the error it answered.
  void add(std::string_view title, const attn::Batch& batch, const tl::expected<attn::Metadata, attn::Error>& built);

  /// The document with all steps added so far.
  [[nodiscard]] std::string svg() const;

 private:
  std::string body_;
  double height_ = 0;
  std::int64_t num_steps_ = 0;
};

/// `text` for the inside of an XML element or attribute: escaped, and free of what XML cannot hold.
[[nodiscard]] std::string xml_text(std::string_view text);

}  // namespace cli
