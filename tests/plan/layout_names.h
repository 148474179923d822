// Megatron's other form of a pipeline layout, lists of names, and its printed table, as in recorded layouts.
#pragma once

#include <algorithm>
#include <cctype>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"
#include "plan/layout.h"

namespace metroplex::test {

using plan::LayerKind;
using plan::PipelineLayout;

inline constexpr LayerKind kKinds[] = {LayerKind::embedding, LayerKind::decoder, LayerKind::mtp, LayerKind::loss,
                                       LayerKind::encoder};

inline const char* layer_kind_name(LayerKind kind) {
  switch (kind) {
    case LayerKind::embedding:
      return "embedding";
    case LayerKind::decoder:
      return "decoder";
    case LayerKind::mtp:
      return "mtp";
    case LayerKind::loss:
      return "loss";
    case LayerKind::encoder:
      return "encoder";
  }
  MPX_ASSERT(false, "unknown layer kind ", static_cast<int>(kind));
}

inline std::string trimmed_lower(const std::string& name) {
  std::string result;
  for (const char c : name) {
    if (!std::isspace(static_cast<unsigned char>(c))) {
      result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  return result;
}

inline std::string stage_text(const std::vector<LayerKind>& stage) {
  if (stage.empty()) return "(empty stage)";
  std::string text;
  for (size_t i = 0; i < stage.size();) {
    size_t end = i;
    while (end < stage.size() && stage[end] == stage[i]) ++end;
    text += (i ? "," : "") + std::string(layer_kind_name(stage[i]));
    if (end - i > 1) text += "*" + std::to_string(end - i);
    i = end;
  }
  return text;
}

// From names ("embedding", "decoder", "mtp", "loss", and "encoder", which check_layout rejects); ignores case and
// surrounding blanks. Throws base::Error("plan") as parse_layout does.
inline PipelineLayout layout_from_names(const std::vector<std::vector<std::string>>& names, int64_t num_stages) {
  PipelineLayout layout;
  layout.num_stages = num_stages;
  for (const auto& stage : names) {
    auto& kinds = layout.stages.emplace_back();
    for (const std::string& name : stage) {
      const std::string wanted = trimmed_lower(name);
      const LayerKind* found = std::find_if(std::begin(kKinds), std::end(kKinds),
                                            [&](LayerKind kind) { return wanted == layer_kind_name(kind); });
      MPX_CHECK(found != std::end(kKinds), "plan", "parallel.pipeline_model_parallel_layout: '", name,
                "' is none of embedding, decoder, mtp, loss, encoder");
      kinds.push_back(*found);
    }
  }
  MPX_CHECK(!layout.stages.empty() && layout.stages.size() % static_cast<size_t>(num_stages) == 0, "plan",
            layout.stages.size(), " stages on ", num_stages, " ranks");
  return layout;
}

// A table of each rank's layers, one line per range of equal ranks.
inline std::string layout_table(const PipelineLayout& layout) {
  const auto chunks = static_cast<size_t>(layout.num_chunks());
  std::vector<std::vector<std::string>> rows;
  if (chunks > 1) {
    rows.emplace_back(1);
    for (size_t c = 0; c < chunks; ++c) rows[0].push_back("VPP rank " + std::to_string(c));
  }
  const auto cells = [&](int64_t rank) {
    std::vector<std::string> row;
    for (size_t c = 0; c < chunks; ++c) row.push_back(stage_text(layout.stage(rank, static_cast<int64_t>(c))));
    return row;
  };
  for (int64_t first = 0; first < layout.num_stages;) {
    const auto row = cells(first);
    int64_t end = first + 1;
    while (end < layout.num_stages && cells(end) == row) ++end;
    auto& line = rows.emplace_back();
    line.push_back("PP rank " + std::to_string(first) + (end - first > 1 ? "-" + std::to_string(end - 1) : ""));
    line.insert(line.end(), row.begin(), row.end());
    first = end;
  }
  std::vector<size_t> widths(chunks + 1, 0);
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (size_t r = 0; r < rows.size(); ++r) {
    text += r ? "\n" : "";
    for (size_t c = 0; c < rows[r].size(); ++c) {
      text += (c ? std::string(chunks <= 4 ? 8 : 4, ' ') : "") + rows[r][c] +
              std::string(widths[c] - rows[r][c].size(), ' ');
    }
  }
  return text;
}

}  // namespace metroplex::test
