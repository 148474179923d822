// layers.json: layers and offsets of every stage, and layout strings. The recording program divided by zero for two
// virtual stages on two ranks with both ends set, so those cases lack an offset. They check only the layer counts,
// and that our offsets cover the model.
#include "base/error.h"
#include "conformance/report.h"
#include "plan/layout.h"
#include "plan/layout_names.h"

namespace metroplex::conformance {
namespace {

int64_t number_at(const Json& json, const char* key, int64_t missing) {
  return json.contains(key) && !json.at(key).is_null() ? json.at(key).get<int64_t>() : missing;
}

std::string compare_stage(const plan::StageLayers& got, const Json& expected) {
  std::string problem = compare(got.num_layers, expected.at("num_layers"));
  if (problem.empty() && expected.contains("offset")) problem = compare(got.first_layer, expected.at("offset"));
  return problem;
}

std::string check_split(const Json& json) {
  config::Parallel parallel;
  parallel.pipeline_model_parallel_size = number_at(json, "pp", 1);
  parallel.virtual_pipeline_model_parallel_size = number_at(json, "vpp", 1);
  parallel.decoder_first_pipeline_num_layers = number_at(json, "num_layers_in_first", 0);
  parallel.decoder_last_pipeline_num_layers = number_at(json, "num_layers_in_last", 0);
  parallel.account_for_embedding_in_pipeline_split = json.value("account_for_embedding", false);
  parallel.account_for_loss_in_pipeline_split = json.value("account_for_loss", false);
  const bool refused = json.contains("config_error") || json.contains("build_error");
  try {
    const auto stages = plan::split_stages(parallel, number_at(json, "num_layers", 0));
    if (refused) return "accepted, expected a refusal";
    for (const Json& expected : json.at("stages")) {
      const int64_t chunk = number_at(expected, "vp_stage", 0), rank = number_at(expected, "pp_rank", 0);
      const auto problem = compare_stage(stages.at(static_cast<size_t>(chunk * parallel.pp() + rank)), expected);
      if (!problem.empty())
        return "rank " + std::to_string(rank) + " chunk " + std::to_string(chunk) + ": " + problem;
    }
    int64_t next = 0;
    for (const auto& stage : stages) {
      if (stage.first_layer != next) return "a gap or overlap before layer " + std::to_string(stage.first_layer);
      next += stage.num_layers;
    }
    return compare(next, json.at("sum_num_layers"));
  } catch (const base::Error& error) { return refused ? "" : std::string("refused: ") + error.what(); }
}

Json layer_names(const std::vector<plan::LayerKind>& kinds) {
  Json names = Json::array();
  for (const auto kind : kinds) names.push_back(test::layer_kind_name(kind));
  return names;
}

std::string check_layout_shape(const plan::PipelineLayout& layout, const Json& json) {
  const Json got_sizes{layout.stages.size(), layout.num_chunks()};
  std::string problem = compare(got_sizes, Json{json.at("num_stages"), json.at("vpp")});
  Json ranks = Json::array(), flat = Json::array();
  for (int64_t rank = 0; rank < layout.num_stages; ++rank) {
    Json chunks = Json::array();
    for (int64_t chunk = 0; chunk < layout.num_chunks(); ++chunk)
      chunks.push_back(layer_names(layout.stage(rank, chunk)));
    ranks.push_back(chunks);
  }
  for (const auto& stage : layout.stages) {
    for (const Json& name : layer_names(stage)) flat.push_back(name);
  }
  if (problem.empty() && json.contains("by_pp_vpp")) problem = compare(ranks, json.at("by_pp_vpp"));
  if (problem.empty() && json.contains("flatten")) problem = compare(flat, json.at("flatten"));
  if (problem.empty() && json.contains("pretty")) problem = compare(test::layout_table(layout), json.at("pretty"));
  return problem;
}

std::string check_layout_stages(const plan::PipelineLayout& layout, const Json& json) {
  for (const Json& expected : cases(json, "stages")) {
    const int64_t rank = expected.at("pp_rank").get<int64_t>(), chunk = expected.at("vp_stage").get<int64_t>();
    int64_t offset = 0;
    const int64_t stage = chunk * layout.num_stages + rank;
    const auto count = [&](int64_t s, plan::LayerKind kind) {
      const auto& kinds = layout.stages.at(static_cast<size_t>(s));
      return static_cast<int64_t>(std::count(kinds.begin(), kinds.end(), kind));
    };
    for (int64_t s = 0; s < stage; ++s) offset += count(s, plan::LayerKind::decoder);
    const int64_t layers = count(stage, plan::LayerKind::decoder);
    Json ids = Json::array();
    for (int64_t i = 0; i < layers; ++i) ids.push_back(offset + i);
    const Json got{{"pp_rank", rank},          {"vp_stage", chunk}, {"decoder_layers", layers},
                   {"decoder_offset", offset}, {"ids", ids},        {"mtp", count(stage, plan::LayerKind::mtp)}};
    const auto problem = compare(got, expected);
    if (!problem.empty()) return problem;
  }
  return "";
}

// The result of split_stages for a valid layout string.
std::string check_layout_split(const Json& json) {
  if (!json.at("layout").is_string()) return "";
  config::Parallel parallel;
  parallel.pipeline_model_parallel_size = json.at("pp").get<int64_t>();
  parallel.pipeline_model_parallel_layout = json.at("layout").get<std::string>();
  const auto stages =
      plan::split_stages(parallel, json.at("num_layers").get<int64_t>(), number_at(json, "mtp_num_layers", 0));
  for (const Json& expected : cases(json, "stages")) {
    const int64_t stage =
        expected.at("vp_stage").get<int64_t>() * parallel.pp() + expected.at("pp_rank").get<int64_t>();
    const auto& got = stages.at(static_cast<size_t>(stage));
    const auto problem =
        compare(Json{got.num_layers, got.first_layer, got.num_mtp_layers},
                Json{expected.at("decoder_layers"), expected.at("decoder_offset"), expected.at("mtp")});
    if (!problem.empty()) return "split_stages: " + problem;
  }
  return "";
}

std::string check_layout(const Json& json) {
  const int64_t pp = json.at("pp").get<int64_t>();
  plan::PipelineLayout layout;
  try {
    layout = json.at("layout").is_string()
                 ? plan::parse_layout(json.at("layout").get<std::string>(), pp)
                 : test::layout_from_names(json.at("layout").get<std::vector<std::vector<std::string>>>(), pp);
  } catch (const base::Error& error) {
    return json.contains("parse_error") ? "" : std::string("not parsed: ") + error.what();
  }
  if (json.contains("parse_error")) return "parsed, expected " + json.at("parse_error").dump();
  std::string problem = check_layout_shape(layout, json);
  if (problem.empty()) problem = check_layout_stages(layout, json);
  if (!problem.empty()) return problem;
  bool standalone = false;
  try {
    standalone =
        plan::check_layout(layout, json.at("num_layers").get<int64_t>(), number_at(json, "mtp_num_layers", 0));
  } catch (const base::Error& error) {
    return json.at("valid").get<bool>() ? std::string("refused: ") + error.what() : "";
  }
  if (!json.at("valid").get<bool>()) return "accepted, expected " + json.value("validate_error", "a refusal");
  if (json.contains("mtp_standalone")) problem = compare(standalone, json.at("mtp_standalone"));
  return problem.empty() ? check_layout_split(json) : problem;
}

}  // namespace

void run_layers(const Json& file, Report& report) {
  int index = 0;
  for (const Json& json : cases(file, "cases")) {
    report.check("case " + std::to_string(index++), [&] { return check_split(json); });
  }
  for (const Json& json : cases(file, "layouts")) {
    report.check("layout " + json.at("layout").dump(), [&] { return check_layout(json); });
  }
}

}  // namespace metroplex::conformance
