#include "run/state.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <exception>
#include <optional>
#include <set>
#include <sstream>

#include "base/error.h"
#include "checkpoint/directory.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "comm/collectives.h"
#include "config/load.h"
#include "config/name_patterns.h"
#include "files/file_system.h"
#include "foreign/model_directory.h"
#include "hf/merged.h"
#include "run/compatible.h"
#include "step/freezing.h"
#include "step/state_tensors.h"
#include "run/run_folders.h"
#include "step/run_length.h"
#include "run/same_data.h"

namespace metroplex::run {
namespace {

using Json = nlohmann::json;

void add_line(std::string& text, const std::string& line) { text += (text.empty() ? "" : "\n") + line; }

Json schedule_json(const optim::ScheduleArgs& schedule) {
  return {{"init_lr", schedule.init_lr},
          {"max_lr", schedule.max_lr},
          {"min_lr", schedule.min_lr},
          {"lr_warmup_steps", schedule.lr_warmup_steps},
          {"lr_decay_steps", schedule.lr_decay_steps},
          {"lr_decay_style", schedule.lr_decay_style.text()},
          {"start_wd", schedule.start_wd},
          {"end_wd", schedule.end_wd},
          {"wd_incr_steps", schedule.wd_incr_steps},
          {"wd_incr_style", schedule.wd_incr_style.text()},
          {"wsd_decay_steps", schedule.wsd_decay_steps},
          {"lr_wsd_decay_style", schedule.lr_wsd_decay_style ? schedule.lr_wsd_decay_style->text() : ""}};
}

optim::ScheduleArgs schedule_from(const Json& j) {
  optim::ScheduleArgs schedule;
  schedule.init_lr = j.at("init_lr");
  schedule.max_lr = j.at("max_lr");
  schedule.min_lr = j.at("min_lr");
  schedule.lr_warmup_steps = j.at("lr_warmup_steps");
  schedule.lr_decay_steps = j.at("lr_decay_steps");
  schedule.lr_decay_style = j.at("lr_decay_style").get<std::string>();
  schedule.start_wd = j.at("start_wd");
  schedule.end_wd = j.at("end_wd");
  schedule.wd_incr_steps = j.at("wd_incr_steps");
  schedule.wd_incr_style = j.at("wd_incr_style").get<std::string>();
  schedule.wsd_decay_steps = j.at("wsd_decay_steps");
  if (const std::string style = j.at("lr_wsd_decay_style"); !style.empty()) schedule.lr_wsd_decay_style = style;
  return schedule;
}

// Names of this rank's tensors that keep their initial values.
using SkippedNames = std::set<std::string>;

// Returns the tensors that a run starting from weights does not load. Throws if a required weight is missing.
SkippedNames find_skipped(const step::ProcessContext& process, const step::RankModel& model,
                          const checkpoint::TensorSource& source) {
  SkippedNames skipped;
  std::vector<std::string> missing;
  for (const optim::State& state : weight_states(model)) {
    const std::string& name = state.param->name;
    const bool there = source.find(name, "weight") != nullptr;
    if (!config::loads(process.config, name) || (!there && config::is_adapter(name))) skipped.insert(name);
    else if (!there) missing.push_back(name);
  }
  for (const optim::State& state : buffer_states(model)) {
    if (!config::loads(process.config, state.param->name)) skipped.insert(state.param->name);
  }
  constexpr size_t kMost = 12;
  std::string list;
  for (size_t i = 0; i < std::min(kMost, missing.size()); ++i) list += "\n  " + missing[i];
  if (missing.size() > kMost) list += base::concat("\n  and ", missing.size() - kMost, " more");
  MPX_CHECK(missing.empty(), "checkpoint", "'", source.directory(), "' has no weights for:", list,
            "\nSet the section model as in the checkpoint, or start without them: checkpoint.load_except");
  return skipped;
}

// Checks the load patterns against the names of the source and of all stages. Collective.
void check_load_patterns(const step::ProcessContext& process, const step::RankModel& model,
                         const checkpoint::TensorSource& source) {
  std::vector<step::NamePattern> patterns;
  for (const std::string& pattern : process.config.checkpoint.load_only)
    patterns.push_back({"checkpoint.load_only", pattern});
  for (const std::string& pattern : process.config.checkpoint.load_except)
    patterns.push_back({"checkpoint.load_except", pattern});
  if (patterns.empty()) return;
  std::vector<std::string> names = gather_stage_names(process, model);
  for (const files::TensorForm& tensor : source.tensors()) names.push_back(tensor.name);
  check_patterns(patterns, names);
}

// Returns "3 tensors are initialized as in a new run: a, b, c". Adapters, which are always new, are counted
// separately.
std::string skipped_text(const SkippedNames& skipped, checkpoint::Exchange& exchange) {
  std::string mine;
  for (const std::string& name : skipped) mine += name + "\n";
  std::set<std::string> all;
  for (const std::string& text : exchange.gather(mine)) {
    std::istringstream lines(text);
    for (std::string name; lines >> name;) all.insert(name);
  }
  size_t adapters = 0, others = 0;
  std::string list;
  for (const std::string& name : all) {
    if (config::is_adapter(name)) ++adapters;
    else if (++others <= 3) list += (others == 1 ? "" : ", ") + name;
  }
  if (others > 3) list += base::concat(" and ", others - 3, " more");
  std::string text = others > 0 ? base::concat(others, " tensors are initialized as in a new run: ", list) : "";
  if (adapters > 0) text += base::concat(others > 0 ? "; and " : "", adapters, " tensors of new adapters");
  return text;
}

// Loads the weights. Uses the main parameter for full precision if the checkpoint has one and this run does not.
void load_weights(const step::ProcessContext& process, const step::RankModel& model, checkpoint::TensorSource& source,
                  const SkippedNames& skipped) {
  for (const optim::State& state : weight_states(model)) {
    const bool exact = !process.config.precision.half() && source.find(state.param->name, "main") != nullptr;
    if (!skipped.contains(state.param->name)) {
      const at::Tensor values = state.values();
      step::fill(source, state, values, exact ? "main" : "weight");
      if (state.store) state.store(values);
    }
    for (const char* kind : {"weight", "main"}) source.mark_read(state.param->name, kind);  // one replaces the other
  }
}

// Histories of magnitudes start anew if the checkpoint has none of this length; those that this run does not use are
// ignored.
void load_buffers(const step::RankModel& model, checkpoint::TensorSource& source, const SkippedNames& skipped,
                  LoadOutcome& outcome) {
  int64_t new_histories = 0;
  for (const optim::State& state : buffer_states(model)) {
    const files::TensorForm* const stored = source.find(state.param->name, state.kind);
    const bool is_new = config::is_operand_history(state.param->name) &&
                        (stored == nullptr || stored->shape != state.param->global_shape);
    if (!is_new && !skipped.contains(state.param->name)) step::fill(source, state, state.values(), state.kind);
    else source.mark_read(state.param->name, state.kind);
    new_histories += is_new ? 1 : 0;
  }
  for (const files::TensorForm& tensor : source.tensors())
    if (config::is_operand_history(tensor.name)) source.mark_read(tensor.name, tensor.kind);
  if (new_histories > 0) {
    add_line(outcome.notes, base::concat("scales of ", new_histories,
                                         " layers begin at 1: the checkpoint has no histories of magnitudes with "
                                         "this precision.fp8_amax_history_len for them"));
  }
}

// Handles runs that froze other parameters. Optimizer state of parameters frozen in this run is skipped and reported
// in `outcome`. Throws if a trained parameter has no state in the checkpoint.
void check_moments(const step::ProcessContext& process, const step::Optimization& optimization,
                   checkpoint::TensorSource& source, LoadOutcome& outcome) {
  size_t left = 0;
  for (const files::TensorForm& tensor : source.tensors()) {
    if (tensor.kind == "weight" || tensor.kind == "main" || tensor.kind == "buffer") continue;
    if (config::trains(process.config, tensor.name)) continue;
    source.mark_read(tensor.name, tensor.kind);
    ++left;
  }
  if (left > 0)
    add_line(outcome.notes, base::concat("not loaded from the checkpoint: optimizer state of frozen parameters, ",
                                         left, " tensors"));
  std::set<std::string> missing;
  for (const optim::State& state : optimization.optimizer->state()) {
    if (state.kind == "main" || source.find(state.param->name, state.kind) != nullptr) continue;
    if (source.find(state.param->name, "weight") == nullptr) continue;  // load_weights reports that
    missing.insert(state.param->name);
  }
  MPX_CHECK(
      missing.empty(), "checkpoint", "'", source.directory(), "' has no optimizer state of ", *missing.begin(),
      missing.size() > 1 ? base::concat(" and ", missing.size() - 1, " more") : "",
      ", because this run trains parameters that the saving run did not; freeze the same parameters (train.freeze, "
      "train.trainable), or start with new optimizer state: checkpoint.no_load_optim");
}

// Main parameters are loaded even if only weights are. From a checkpoint without main parameters, the stored weights
// are used, which may be more precise than this run's.
void load_optimizer(step::Optimization& optimization, checkpoint::TensorSource& source, bool moments,
                    const SkippedNames& skipped) {
  for (const optim::State& state : optimization.optimizer->state()) {
    const bool main = state.kind == "main";
    if ((!main && !moments) || skipped.contains(state.param->name)) continue;
    const bool as_weight = main && source.find(state.param->name, "main") == nullptr;
    const at::Tensor values = state.values();
    step::fill(source, state, values, as_weight ? "weight" : state.kind);
    optimization.optimizer->restore(state, values);
  }
}

// Throws for a checkpoint tensor that no rank uses, unless an allowed difference explains it.
struct ReadRules {
  bool begins = false, moments = false, allowed = false;
};
void check_all_read(const step::ProcessContext& process, checkpoint::TensorSource& source,
                    checkpoint::Exchange& exchange, const ReadRules& requested, LoadOutcome& outcome) {
  const auto [begins, moments, allowed] = requested;
  for (const files::TensorForm& tensor : source.tensors()) {
    if (begins && !config::loads(process.config, tensor.name)) source.mark_read(tensor.name, tensor.kind);
    if (!moments && tensor.kind != "weight" && tensor.kind != "main" && tensor.kind != "buffer")
      source.mark_read(tensor.name, tensor.kind);
  }
  const std::vector<std::string> left = source.unread(exchange);
  if (left.empty()) return;
  std::string list;
  for (size_t i = 0; i < left.size() && i < 3; ++i) list += (i == 0 ? "" : ", ") + left[i];
  if (left.size() > 3) list += base::concat(" and ", left.size() - 3, " more");
  MPX_CHECK(
      allowed, "checkpoint", "'", source.directory(), "' contains tensors that this run does not use: ", list,
      "; set the sections model and optim as in the checkpoint (for only the weights: checkpoint.no_load_optim)");
  add_line(outcome.notes, "not loaded from the checkpoint: " + list);
}

Json scaler_json(const step::Optimization& optimization, const kernels::StepValues& step) {
  if (!optimization.scaler) return nullptr;
  const optim::GradScalerState state = optim::scaler_state(step);
  return {{"scale", state.scale},
          {"growth_tracker", state.growth_tracker},
          {"hysteresis_tracker", state.hysteresis_tracker}};
}

// If the checkpoint has no loss scale, the initial scale is kept.
void load_step(step::Optimization& optimization, int64_t steps, const Json& scaler) {
  kernels::StepValues step = optimization.step_state.read();
  optimization.steps = steps;
  step.steps = static_cast<double>(steps);
  if (optimization.scaler && !scaler.is_null()) {
    optim::set_scaler_state(step, optimization.scaler->resumed({scaler.at("scale"), scaler.at("growth_tracker"),
                                                                scaler.at("hysteresis_tracker")}));
  }
  optimization.step_state.write(step);
}

// Data order and dropout masks follow from the seed, so a resumed run must keep it.
void check_seed(const Json& extra, const config::Config& config, const std::string& directory) {
  const int64_t saved = extra.at("seed");
  const bool goes_on = !config.checkpoint.finetune && !config.checkpoint.no_load_rng;
  MPX_CHECK(!goes_on || saved == config.run.seed, "checkpoint", "run.seed is ", config.run.seed, " here and was ",
            saved, " in ", directory, "; the order of the data and dropout depend on it. Set run.seed=", saved,
            ", or set checkpoint.no_load_rng to continue with another seed");
}

// Checks the data on rank 0 and broadcasts the result.
void check_data(const step::ProcessContext& process, const step::Optimization& optimization,
                const checkpoint::Reader& reader, const data::TrainOrder& order, checkpoint::Exchange& exchange,
                LoadOutcome& outcome) {
  if (!optimization.optimizer || process.config.checkpoint.finetune || outcome.position.consumed_train_samples == 0)
    return;
  const SavedData saved = saved_data(reader.manifest());
  const std::string told =
      exchange.broadcast(exchange.rank() == 0 ? data_note({process.config, order}, saved.run()) : "");
  const std::string other =
      exchange.broadcast(exchange.rank() == 0 ? data_differences({process.config, order}, saved.run()) : "");
  if (!told.empty()) add_line(outcome.notes, told);
  if (other.empty()) return;
  check_data_override(process.config.checkpoint, other, outcome.path, outcome.position.consumed_train_samples);
  add_line(outcome.notes, "resuming at sample " + std::to_string(outcome.position.consumed_train_samples) +
                              " of other training data:" + other);
}

optim::ScheduleSource schedule_source(const config::Optim& optim) {
  if (optim.override_opt_param_scheduler) return optim::ScheduleSource::override_checkpoint;
  return optim.use_checkpoint_opt_param_scheduler ? optim::ScheduleSource::use_checkpoint
                                                  : optim::ScheduleSource::must_agree;
}

Json tokenizer_json(const text::TokenizerFiles& tokenizer) {
  std::vector<std::string> names;
  for (const auto& [name, bytes] : tokenizer.files) names.push_back(name);
  return {{"type", tokenizer.type}, {"checksum", tokenizer.checksum}, {"files", names}};
}

// Lists later checkpoints in the folder in which the run resumes.
std::string find_later_branch(files::FileSystem& disk, const config::Checkpoint& checkpoint,
                              const std::string& path) {
  const std::string folder = files::parent_directory(path);
  const auto used = checkpoint::parse_name(files::base_name(path));
  if (!used || checkpoint.save.empty() || !same_folder(folder, checkpoint.save, disk)) return "";
  std::string names;
  for (const auto& name : checkpoint::list_checkpoints(disk, folder)) {
    if (name.iteration > used->iteration) names += (names.empty() ? "" : ", ") + checkpoint::to_string(name);
  }
  return names.empty() ? "" : "this run leaves a branch: " + names + " in " + folder;
}

}  // namespace

namespace {

// Weights of a new run: with DoRA, also magnitudes for new adapters.
class StartWeights {
 public:
  StartWeights(checkpoint::TensorSource& given, const config::Config& config) : given_(given) {
    if (config.peft.use_dora) dora_.emplace(given, config);
  }
  checkpoint::TensorSource& source() { return dora_ ? *dora_ : given_; }

 private:
  checkpoint::TensorSource& given_;
  std::optional<hf::DoraWeights> dora_;
};

}  // namespace

std::string load_from_source(step::Assembly& assembly, checkpoint::TensorSource& given) {
  StartWeights weights(given, assembly.process.config);
  checkpoint::TensorSource& source = weights.source();
  GroupExchange exchange(assembly.process.groups().checkpoint);
  assembly.model.families.finish_gathers();
  SkippedNames skipped;
  if (assembly.optimization.optimizer) {
    check_load_patterns(assembly.process, assembly.model, source);
    skipped = find_skipped(assembly.process, assembly.model, source);
  }
  load_weights(assembly.process, assembly.model, source, skipped);
  for (const optim::State& state : buffer_states(assembly.model)) {
    if (source.find(state.param->name, state.kind) != nullptr && !skipped.contains(state.param->name))
      step::fill(source, state, state.values(), state.kind);
  }
  if (assembly.optimization.optimizer) load_optimizer(assembly.optimization, source, false, skipped);
  LoadOutcome outcome;
  check_all_read(assembly.process, source, exchange, {.begins = assembly.optimization.optimizer != nullptr}, outcome);
  assembly.model.families.loaded();
  return skipped_text(skipped, exchange);
}

std::string load_from_directory(step::Assembly& assembly, files::FileSystem& disk) {
  std::function<bool(const std::string&)> wanted;
  if (assembly.optimization.optimizer)
    wanted = [&](const std::string& name) { return config::loads(assembly.process.config, name); };
  return load_from_source(assembly, *foreign::open_run_weights(disk, assembly.process.config, wanted));
}

checkpoint::RunState run_state(const step::ProcessContext& process, const step::Optimization& optimization,
                               const Position& position, files::FileSystem& disk) {
  checkpoint::RunState state;
  state.iteration = position.iteration;
  state.consumed_samples = position.consumed_train_samples;
  config::Config saved = process.config;
  saved.model.from.clear();  // its weights are part of the checkpoint
  saved.peft.from.clear();
  state.config_yaml = config::dump(saved);
  const kernels::StepValues step = optimization.step_state.read();
  Json extra{{"optimizer_steps", static_cast<int64_t>(step.steps)},
             {"skipped_iterations", position.skipped_iterations},
             {"scheduled_samples", position.scheduled_samples},
             {"grad_scaler", scaler_json(optimization, step)},
             {"train_sources", position.train_order.sources},
             {"train_epochs", position.train_order.epochs},
             {"seed", process.config.run.seed},  // dropout depends on seed, step and sample; nothing else is random
             {"schedule", schedule_json(optimization.schedule->args())}};
  if (position.tokenizer) {
    extra["tokenizer"] = tokenizer_json(*position.tokenizer);
    for (const auto& [name, bytes] : position.tokenizer->files) state.side_files.push_back({name, bytes});
  }
  state.extra = extra.dump();
  const bool same = !position.checkpoint.empty() &&
                    same_folder(files::parent_directory(position.checkpoint), process.config.checkpoint.save, disk);
  state.parent = same ? files::base_name(position.checkpoint) : "";
  return state;
}

std::vector<Difference> check_loadable(const config::Config& config, const text::TokenizerFiles* tokenizer,
                                       const files::Manifest& manifest, const std::string& path, bool trains) {
  std::vector<Difference> allowed = check_compatible(config, tokenizer, manifest, path);
  if (!trains) return allowed;
  check_seed(Json::parse(manifest.extra), config, path);
  if (!config.checkpoint.finetune && !config.checkpoint.no_load_optim) check_optimizer(config, manifest, path);
  return allowed;
}

void check_schedule(const config::Config& config, int64_t data_parallel_size, const files::Manifest& manifest) {
  const Json extra = Json::parse(manifest.extra);
  if (config.checkpoint.finetune || config.checkpoint.no_load_optim || !extra.contains("schedule")) return;
  const config::Config lengths =
      step::convert_to_samples(config, step::microbatch_schedule(config, data_parallel_size));
  optim::merge_schedules(optim::schedule_args(lengths), schedule_from(extra.at("schedule")),
                         schedule_source(config.optim));
}

LoadOutcome load_state(step::Assembly& assembly, const std::string& directory, files::FileSystem& disk,
                       const Position& expected) {
  GroupExchange exchange(assembly.process.groups().checkpoint);
  const config::Checkpoint& checkpoint = assembly.process.config.checkpoint;
  checkpoint::Found found = checkpoint::open_path(disk, directory, checkpoint.ckpt_step, exchange);
  LoadOutcome outcome;
  for (const std::string& problem : found.problems) add_line(outcome.notes, problem);
  if (!found.reader) {
    config::Config requested = assembly.process.config;
    requested.checkpoint.load = directory;
    check_first_start(requested, found.others, disk);
    return outcome;
  }
  checkpoint::Reader& reader = *found.reader;
  outcome.path = reader.directory();
  const auto allowed = check_loadable(assembly.process.config, expected.tokenizer.get(), reader.manifest(),
                                      outcome.path, assembly.optimization.optimizer != nullptr);
  for (const Difference& difference : allowed)
    add_line(outcome.notes, difference.key + " is " + difference.here + " here and was " + difference.there);
  const Json extra = Json::parse(reader.manifest().extra);
  const int64_t consumed = reader.manifest().consumed_samples;
  outcome.position = {reader.manifest().iteration,
                      consumed,
                      extra.value("scheduled_samples", consumed),
                      extra.value("skipped_iterations", int64_t{0}),
                      outcome.path,
                      expected.train_order,
                      expected.tokenizer};
  check_data(assembly.process, assembly.optimization, reader, expected.train_order, exchange, outcome);
  const bool with_optimizer = assembly.optimization.optimizer && !checkpoint.finetune && !checkpoint.no_load_optim;
  assembly.model.families.finish_gathers();  // a gather in flight reads the values that loading writes
  const bool begins = assembly.optimization.optimizer && checkpoint.finetune;
  SkippedNames skipped;
  std::optional<StartWeights> start;
  if (begins) start.emplace(reader, assembly.process.config);
  checkpoint::TensorSource& source = start ? start->source() : reader;
  if (begins) {
    check_load_patterns(assembly.process, assembly.model, source);
    skipped = find_skipped(assembly.process, assembly.model, source);
    outcome.skipped_tensors = skipped_text(skipped, exchange);
  }
  load_weights(assembly.process, assembly.model, source, skipped);
  load_buffers(assembly.model, source, skipped, outcome);
  if (with_optimizer) check_moments(assembly.process, assembly.optimization, source, outcome);
  if (assembly.optimization.optimizer) load_optimizer(assembly.optimization, source, with_optimizer, skipped);
  check_all_read(assembly.process, source, exchange, {begins, with_optimizer, !allowed.empty()}, outcome);
  if (with_optimizer) {
    load_step(assembly.optimization, extra.at("optimizer_steps"), extra.value("grad_scaler", Json()));
    if (extra.contains("schedule"))  // not if another program saved it
      assembly.optimization.schedule = std::make_unique<optim::LrSchedule>(
          optim::merge_schedules(assembly.optimization.schedule->args(), schedule_from(extra.at("schedule")),
                                 schedule_source(assembly.process.config.optim)));
    assembly.optimization.rates.invalidate();
  }
  assembly.model.families.loaded();
  outcome.loaded = true;
  const config::Train saved = config::parse_saved(reader.manifest().config_yaml).train;
  outcome.metrics_file = saved.metrics_file;
  outcome.expert_trace_file = saved.expert_trace_file;
  if (exchange.rank() == 0 && assembly.optimization.optimizer)
    outcome.later_branch = find_later_branch(disk, checkpoint, outcome.path);
  return outcome;
}

}  // namespace metroplex::run
