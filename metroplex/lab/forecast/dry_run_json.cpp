#include "forecast/dry_run.h"

#include <cmath>

#include <nlohmann/json.hpp>

#include "config/fields.h"
#include "config/validate.h"

namespace metroplex::forecast {
namespace {

using OrderedJson = nlohmann::ordered_json;

template <class T>
OrderedJson or_null(const std::optional<T>& value) {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

OrderedJson field_json(const config::Field& field) {
  if (const auto* flag = std::get_if<bool*>(&field.member)) return **flag;
  if (const auto* whole = std::get_if<int64_t*>(&field.member)) return **whole;
  if (const auto* list = std::get_if<std::vector<std::string>*>(&field.member)) return **list;
  if (const auto* real = std::get_if<double*>(&field.member); real != nullptr && std::isfinite(**real)) return **real;
  return config::to_text(field);
}

OrderedJson config_object(config::Config config) {
  OrderedJson out = OrderedJson::object();
  for (const config::Field& field : config::fields(config)) out[field.section][field.name] = field_json(field);
  return out;
}

OrderedJson layout_json(const DryRun& run) {
  const config::Parallel& parallel = run.request.config.parallel;
  return {{"tp", parallel.tp()},
          {"pp", parallel.pp()},
          {"vpp", parallel.vpp()},
          {"cp", parallel.cp()},
          {"dp", config::data_parallel_size(parallel, run.request.world_size)},
          {"sharding", parallel.data_parallel_sharding_strategy.text()}};
}

OrderedJson context_json(const DryRun& run) {
  const config::Parallel& parallel = run.request.config.parallel;
  if (run.exchanges.empty()) return nullptr;
  OrderedJson layers = OrderedJson::array();
  for (const ContextExchange& exchange : run.exchanges) {
    layers.push_back({{"layer", exchange.layer},
                      {"exchange", config::text_of(exchange.exchange)},
                      {"bytes", {{"forward", exchange.forward_bytes}, {"backward", exchange.backward_bytes}}},
                      {"operations", {{"forward", exchange.forward_flops}, {"backward", exchange.backward_flops}}}});
  }
  return {{"cut", parallel.context_parallel_cut.text()}, {"layers", layers}};
}

OrderedJson rank_json(const RankFigures& figures) {
  OrderedJson out{{"rank", figures.rank}, {"pp", figures.pp}, {"last_of_shards", figures.last}};
  out["parameters"] = figures.prediction.num_params;
  out["operations"] = figures.prediction.flops;
  OrderedJson& bytes = out["bytes"] = OrderedJson::object();
  for (const replay::MemoryCategory& category : replay::kMemoryCategories)
    bytes[category.name] = figures.prediction.memory.use.*category.bytes;
  out["peak"] = figures.peak;
  return out;
}

OrderedJson memory_json(const DryRun& run) {
  const MemoryDomains& domains = run.request.domains;
  OrderedJson out{{"domain", domains.gpu ? "gpu" : "machine"},
                  {"ranks_of_domain", run.fit.domain_ranks},
                  {"need", run.fit.need},
                  {"have", or_null(run.fit.have)},
                  {"have_from", domains.from},
                  {"worst_rank", run.fit.worst_rank().rank}};
  OrderedJson& ranks = out["ranks"] = OrderedJson::array();
  for (const RankFigures& figures : run.fit.ranks) ranks.push_back(rank_json(figures));
  return out;
}

OrderedJson data_json(const DryRun& run) {
  OrderedJson sources = OrderedJson::array();
  for (const data::SourceTokens& source : run.sources) {
    sources.push_back({{"prefix", source.prefix},
                       {"problem", source.problem},
                       {"documents", source.documents},
                       {"tokens", source.tokens},
                       {"chats", source.chats},
                       {"epoch_samples", source.epoch_samples},
                       {"share", source.share},
                       {"epochs", or_null(run.epochs(source))}});
  }
  return sources;
}

OrderedJson option_json(const MemoryOption& option) {
  return {{"settings", option.settings}, {"what", option.what}, {"need", option.need},
          {"saves", option.saves},       {"fits", option.fits}, {"cost", option.cost}};
}

OrderedJson options_json(const DryRun& run) {
  if (!run.memory_options) return nullptr;
  OrderedJson out{{"single", OrderedJson::array()}, {"together", nullptr}};
  for (const MemoryOption& option : run.memory_options->single) out["single"].push_back(option_json(option));
  if (run.memory_options->together) out["together"] = option_json(*run.memory_options->together);
  return out;
}

OrderedJson pipeline_json(const PipelineOutlook& pipeline) {
  return {{"microbatches", pipeline.microbatches},
          {"bubble_share", or_null(pipeline.bubble_share)},
          {"formula_bubble_share", pipeline.formula_bubble_share},
          {"live_microbatches", pipeline.live_microbatches}};
}

}  // namespace

std::string json(const DryRun& run) {
  const config::Config& config = run.request.config;
  OrderedJson out{{"run", config.run.name}, {"ranks", run.request.world_size}};
  out["fits"] = run.fit.have ? OrderedJson(run.fits()) : OrderedJson(nullptr);
  out["refused"] = run.refused.empty() ? OrderedJson(nullptr) : OrderedJson(run.refused);
  out["layout"] = layout_json(run);
  out["parameters"] = {{"all", run.num_params}};
  out["operations"] = {{"step", run.step_flops},
                       {"step_by_formula", run.model_flops},
                       {"token", run.step_flops / static_cast<double>(run.step_tokens)}};
  if (run.active_params > 0) {
    out["parameters"]["active"] = run.active_params;
    out["operations"]["token_by_formula"] = {{"active", run.token_flops_active}, {"all", run.token_flops_all}};
  }
  out["context_parallel"] = context_json(run);
  out["pipeline"] = {{"schedule", config.parallel.pipeline_schedule.text()}};
  out["pipeline"].update(pipeline_json(run.pipeline));
  out["schedules"] = OrderedJson::array();
  for (const ScheduleOutlook& row : run.schedules) {
    OrderedJson one{{"settings", row.settings}, {"memory", row.need}};
    one.update(pipeline_json(row.pipeline));
    out["schedules"].push_back(one);
  }
  out["tokens"] = {{"step", run.step_tokens},
                   {"steps", run.length.iterations},
                   {"samples", run.length.samples},
                   {"all", run.all_tokens()}};
  out["data"] = data_json(run);
  out["memory"] = memory_json(run);
  out["memory_options"] = options_json(run);
  out["notes"] = run.notes;
  out["config"] = config_object(config);
  return out.dump(2, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string config_json(const config::Config& config) { return config_object(config).dump(); }

}  // namespace metroplex::forecast
