// hybrid_layers.json: Megatron's layer patterns, their symbols, counts and pipeline stages, read through the flag
// --hybrid-layer-pattern. Patterns with kinds of layers that do not exist here wait.
#include <algorithm>

#include "base/error.h"
#include "config/layer_parts.h"
#include "config/load.h"
#include "conformance/report.h"
#include "megatron/flags.h"
#include "plan/layout.h"

namespace metroplex::conformance {
namespace {

config::Config read_flags(std::vector<std::string> words) {
  return config::load("", megatron::parse_arguments(words, megatron::Form::kSingleFlags).assignments);
}

std::string symbol(const config::LayerParts& parts) {
  return parts.mamba ? "M" : parts.attention ? "*" : parts.mlp ? "-" : "E";
}

Json symbols(const std::vector<config::LayerParts>& layers) {
  Json out = Json::array();
  for (const config::LayerParts& parts : layers) out.push_back(symbol(parts));
  return out;
}

// Megatron's pattern, from our pattern and the layout of the pipeline.
std::string join_stages(const config::Config& config) {
  const std::string& layout = config.parallel.pipeline_model_parallel_layout;
  if (layout.empty()) return config.model.hybrid_layer_pattern;
  std::string out;
  size_t layer = 0;
  for (const char letter : layout.substr(1, layout.size() - 2))
    out += letter == '|' ? '|' : config.model.hybrid_layer_pattern[layer++];
  return out;
}

std::string check_parse(const Json& json) {
  const std::string pattern = json.at("pattern");
  if (pattern.empty()) return compare(Json(pattern), json.at("main"));  // no flag
  const config::Config config = read_flags({"--hybrid-layer-pattern", pattern});
  config::layer_parts(config.model);
  return compare(join_stages(config), json.at("main")) + compare(0, json.at("depths")) +
         compare(Json(), json.at("mtp"));
}

std::string check_counts(const Json& json) {
  const config::Config config = read_flags({"--hybrid-layer-pattern", json.at("pattern")});
  Json counts{{"*", 0}, {"D", 0}, {"G", 0}, {"M", 0}, {"+", 0}, {"-", 0}, {"E", 0}};
  int64_t layers = 0;
  for (const config::LayerParts& parts : config::layer_parts(config.model)) {
    counts[symbol(parts)] = counts[symbol(parts)].get<int64_t>() + 1;
    ++layers;
  }
  const std::string text = join_stages(config);
  const auto bars = std::count(text.begin(), text.end(), '|');
  return compare(counts, json.at("counts")) + compare(bars + 1, json.at("total_segments")) +
         compare(layers, json.at("total_layers"));
}

std::string check_segment(const Json& json) {
  const std::string pattern = json.at("pattern");
  std::string problem;
  const auto layers = config::read_hybrid_layers(pattern, static_cast<int64_t>(pattern.size()), problem);
  MPX_CHECK(layers.has_value(), "config", problem);
  return compare(symbols(*layers), json.at("layers"));
}

std::string check_select(const Json& json) {
  std::vector<std::string> flags{"--hybrid-layer-pattern", json.at("pattern"), "--pipeline-model-parallel-size",
                                 json.at("pp").dump()};
  const auto add = [&](const char* key, const char* flag) {
    if (!json.at(key).is_null()) flags.insert(flags.end(), {flag, json.at(key).dump()});
  };
  add("first", "--decoder-first-pipeline-num-layers");
  add("last", "--decoder-last-pipeline-num-layers");
  const config::Config config = read_flags(flags);
  const auto stages = plan::split_stages(config.parallel, config.model.num_layers);
  const int64_t chunk = json.at("vp_stage").is_null() ? 0 : json.at("vp_stage").get<int64_t>();
  const size_t index = static_cast<size_t>(chunk * config.parallel.pp() + json.at("pp_rank").get<int64_t>());
  const plan::StageLayers& stage = stages.at(index);
  const std::vector<config::LayerParts> all = config::layer_parts(config.model);
  const std::vector<config::LayerParts> own(all.begin() + stage.first_layer,
                                            all.begin() + stage.first_layer + stage.num_layers);
  return compare(symbols(own), json.at("layers")) + compare(stage.first_layer, json.at("offset"));
}

}  // namespace

void run_hybrid_layers(const Json& file, Report& report) {
  const auto run = [&](const char* list, std::string (*check)(const Json&)) {
    for (const Json& json : cases(file, list)) {
      const std::string pattern = json.at("pattern"), name = std::string(list) + " '" + pattern + "'";
      const bool other = pattern.find_first_of("GD+/") != std::string::npos;
      if (other && !is_refusal(json)) report.wait(name, "gated delta nets, other attention, multi-token prediction");
      else report.check(name, json, [&] { return check(json); });
    }
  };
  run("parse", check_parse);
  run("counts", check_counts);
  run("segments", check_segment);
  run("select", check_select);
  for (const Json& json : cases(file, "from_ratios"))
    report.wait("from_ratios " + json.at("pattern").get<std::string>(), "patterns that follow from shares of layers");
}

}  // namespace metroplex::conformance
