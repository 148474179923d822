#include "plan/layout.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "config/layout.h"

namespace metroplex::plan {
namespace {

struct Letter {
  char letter;
  LayerKind kind;
};
constexpr Letter kLetters[] = {
    {'E', LayerKind::embedding}, {'t', LayerKind::decoder}, {'m', LayerKind::mtp}, {'L', LayerKind::loss}};
constexpr LayerKind kKinds[] = {LayerKind::embedding, LayerKind::decoder, LayerKind::mtp, LayerKind::loss,
                                LayerKind::encoder};

void check_stage_count(const PipelineLayout& layout) {
  MPX_CHECK(layout.num_stages >= 1, "plan", "pipeline_model_parallel_size ", layout.num_stages,
            " must be at least 1");
  MPX_CHECK(!layout.stages.empty() && layout.stages.size() % static_cast<size_t>(layout.num_stages) == 0, "plan",
            "parallel.pipeline_model_parallel_layout has ", layout.stages.size(),
            " stages, not a multiple of pipeline_model_parallel_size ", layout.num_stages, "; add or remove a '|'");
}

std::string trimmed_lower(const std::string& name) {
  std::string result;
  for (const char c : name) {
    if (!std::isspace(static_cast<unsigned char>(c))) {
      result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  return result;
}

std::string stage_text(const std::vector<LayerKind>& stage) {
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

void check_mtp(const PipelineLayout& layout, int64_t num_mtp_layers) {
  MPX_CHECK(layout.count(LayerKind::mtp) == num_mtp_layers, "plan", "parallel.pipeline_model_parallel_layout holds ",
            layout.count(LayerKind::mtp), " mtp layers, the model has ", num_mtp_layers);
  bool seen = false;
  for (size_t s = 0; s < layout.stages.size(); ++s) {
    int64_t here = 0;
    for (const LayerKind kind : layout.stages[s]) {
      seen = seen || kind == LayerKind::mtp;
      here += kind == LayerKind::mtp;
      MPX_CHECK(!(seen && kind == LayerKind::decoder), "plan",
                "parallel.pipeline_model_parallel_layout has a transformer layer behind an mtp layer in stage ", s);
    }
    MPX_CHECK(here == 0 || here == num_mtp_layers, "plan", "parallel.pipeline_model_parallel_layout spreads the ",
              num_mtp_layers, " mtp layers over several stages; put them into one");
    const int64_t chunk = static_cast<int64_t>(s) / layout.num_stages;
    MPX_CHECK(here == 0 || chunk + 1 == layout.num_chunks(), "plan",
              "parallel.pipeline_model_parallel_layout has mtp layers in stage ", s,
              ", which is not the last chunk of its rank");
  }
}

}  // namespace

const char* layer_kind_name(LayerKind kind) {
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

int64_t PipelineLayout::count(LayerKind kind) const {
  int64_t result = 0;
  for (const auto& stage : stages) result += std::count(stage.begin(), stage.end(), kind);
  return result;
}

PipelineLayout parse_layout(const std::string& text, int64_t num_stages) {
  PipelineLayout layout;
  layout.num_stages = num_stages;
  std::string problem;
  const auto stages = config::unrolled_layout(text, problem);
  MPX_CHECK(stages.has_value(), "plan", "parallel.pipeline_model_parallel_layout '", text,
            "' cannot be read: ", problem);
  for (const std::string& letters : *stages) {
    auto& stage = layout.stages.emplace_back();
    for (const char c : letters) {
      const Letter* letter =
          std::find_if(std::begin(kLetters), std::end(kLetters), [c](const Letter& l) { return l.letter == c; });
      MPX_ASSERT(letter != std::end(kLetters), "letter ", c);
      stage.push_back(letter->kind);
    }
  }
  check_stage_count(layout);
  return layout;
}

PipelineLayout layout_from_names(const std::vector<std::vector<std::string>>& names, int64_t num_stages) {
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
  check_stage_count(layout);
  return layout;
}

bool check_layout(const PipelineLayout& layout, int64_t num_layers, int64_t num_mtp_layers) {
  std::vector<LayerKind> all;
  for (const auto& stage : layout.stages) all.insert(all.end(), stage.begin(), stage.end());
  const char* key = "parallel.pipeline_model_parallel_layout";
  MPX_CHECK(!all.empty() && all.front() == LayerKind::embedding, "plan", key, " must begin with the embedding, E");
  MPX_CHECK(all.back() == LayerKind::loss, "plan", key, " must end with the loss, L");
  MPX_CHECK(layout.count(LayerKind::embedding) == 1, "plan", key, " holds ", layout.count(LayerKind::embedding),
            " embeddings; exactly one is needed");
  MPX_CHECK(layout.count(LayerKind::loss) == 1, "plan", key, " holds ", layout.count(LayerKind::loss),
            " losses; exactly one is needed");
  MPX_CHECK(layout.count(LayerKind::encoder) == 0, "plan", key, " holds ", layout.count(LayerKind::encoder),
            " encoder layers, and the model has no encoder");
  MPX_CHECK(layout.count(LayerKind::decoder) == num_layers, "plan", key, " holds ", layout.count(LayerKind::decoder),
            " transformer layers, model.num_layers is ", num_layers);
  check_mtp(layout, num_mtp_layers);
  for (int64_t rank = 0; rank + 1 < layout.num_stages; ++rank) {
    const auto& last = layout.stage(rank, layout.num_chunks() - 1);
    if (std::count(last.begin(), last.end(), LayerKind::mtp) > 0) return true;
  }
  return false;
}

std::string layout_table(const PipelineLayout& layout) {
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

}  // namespace metroplex::plan
