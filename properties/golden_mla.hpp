#pragma once

#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <string>

namespace properties {

/// Compares the planner of MLA contexts with a golden record of `mla_chunked_context`: every field of every chunk. The
/// first field that differs; throws where the record has not the shape that `corpus/golden/README.md` says.
[[nodiscard]] std::optional<std::string> compare_mla_context(const nlohmann::json& record);

}  // namespace properties
