#include "plan/layout.h"

#include <algorithm>

#include "base/error.h"
#include "config/parallel.h"

namespace metroplex::plan {
namespace {

struct Letter {
  char letter;
  LayerKind kind;
};
constexpr Letter kLetters[] = {
    {'E', LayerKind::embedding}, {'t', LayerKind::decoder}, {'m', LayerKind::mtp}, {'L', LayerKind::loss}};

void check_stage_count(const PipelineLayout& layout) {
  MPX_CHECK(layout.num_stages >= 1, "plan", "parallel.pipeline_model_parallel_size = ", layout.num_stages,
            ": must be at least 1");
  MPX_CHECK(!layout.stages.empty() && layout.stages.size() % static_cast<size_t>(layout.num_stages) == 0, "plan",
            "parallel.pipeline_model_parallel_layout has ", layout.stages.size(),
            " stages, not a multiple of pipeline_model_parallel_size ", layout.num_stages, "; add or remove a '|'");
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
                "parallel.pipeline_model_parallel_layout has a transformer layer after an mtp layer in stage ", s);
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
      const Letter* letter = std::find_if(std::begin(kLetters), std::end(kLetters),
                                          [c](const Letter& letter) { return letter.letter == c; });
      MPX_ASSERT(letter != std::end(kLetters), "letter ", c);
      stage.push_back(letter->kind);
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

}  // namespace metroplex::plan
