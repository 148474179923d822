#include "run/state.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <exception>
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
#include "hf/directory.h"
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

Json schedule_json(const optim::ScheduleArgs& s) {
  return {{"init_lr", s.init_lr},
          {"max_lr", s.max_lr},
          {"min_lr", s.min_lr},
          {"lr_warmup_steps", s.lr_warmup_steps},
          {"lr_decay_steps", s.lr_decay_steps},
          {"lr_decay_style", s.lr_decay_style.text()},
          {"start_wd", s.start_wd},
          {"end_wd", s.end_wd},
          {"wd_incr_steps", s.wd_incr_steps},
          {"wd_incr_style", s.wd_incr_style.text()},
          {"wsd_decay_steps", s.wsd_decay_steps},
          {"lr_wsd_decay_style", s.lr_wsd_decay_style ? s.lr_wsd_decay_style->text() : ""}};
}

optim::ScheduleArgs schedule_from(const Json& j) {
  optim::ScheduleArgs s;
  s.init_lr = j.at("init_lr");
  s.max_lr = j.at("max_lr");
  s.min_lr = j.at("min_lr");
  s.lr_warmup_steps = j.at("lr_warmup_steps");
  s.lr_decay_steps = j.at("lr_decay_steps");
  s.lr_decay_style = j.at("lr_decay_style").get<std::string>();
  s.start_wd = j.at("start_wd");
  s.end_wd = j.at("end_wd");
  s.wd_incr_steps = j.at("wd_incr_steps");
  s.wd_incr_style = j.at("wd_incr_style").get<std::string>();
  s.wsd_decay_steps = j.at("wsd_decay_steps");
  if (const std::string style = j.at("lr_wsd_decay_style"); !style.empty()) s.lr_wsd_decay_style = style;
  return s;
}

// Names of this rank's tensors that keep their initial values.
using Kept = std::set<std::string>;

// Returns the tensors that a run starting from weights does not load. Throws if a required weight is missing.
Kept kept_by(const step::Assembly& a, const checkpoint::TensorSource& source) {
  Kept kept;
  std::vector<std::string> missing;
  for (const optim::State& state : weight_states(a)) {
    const std::string& name = state.param->name;
    const bool there = source.find(name, "weight") != nullptr;
    if (!config::loads(a.config, name) || (!there && config::is_adapter(name))) kept.insert(name);
    else if (!there) missing.push_back(name);
  }
  for (const optim::State& state : buffer_states(a)) {
    if (!config::loads(a.config, state.param->name)) kept.insert(state.param->name);
  }
  constexpr size_t kMost = 12;
  std::string list;
  for (size_t i = 0; i < std::min(kMost, missing.size()); ++i) list += "\n  " + missing[i];
  if (missing.size() > kMost) list += base::concat("\n  and ", missing.size() - kMost, " more");
  MPX_CHECK(missing.empty(), "checkpoint", "'", source.directory(), "' has no weights for:", list,
            "\nSet the section model as in the checkpoint, or start without them: checkpoint.load_except");
  return kept;
}

// Checks the load patterns against the names of the source and of all stages. Collective.
void check_load_patterns(const step::Assembly& a, const checkpoint::TensorSource& source) {
  std::vector<step::NamePattern> patterns;
  for (const std::string& pattern : a.config.checkpoint.load_only)
    patterns.push_back({"checkpoint.load_only", pattern});
  for (const std::string& pattern : a.config.checkpoint.load_except)
    patterns.push_back({"checkpoint.load_except", pattern});
  if (patterns.empty()) return;
  std::vector<std::string> names = names_of_all_stages(a);
  for (const files::TensorForm& tensor : source.tensors()) names.push_back(tensor.name);
  check_patterns(patterns, names);
}

// Returns "3 tensors are initialized as in a new run: a, b, c". Adapters, which are always new, are counted
// separately.
std::string left_out_text(const Kept& kept, checkpoint::Exchange& exchange) {
  std::string mine;
  for (const std::string& name : kept) mine += name + "\n";
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
void load_weights(step::Assembly& a, checkpoint::TensorSource& source, const Kept& kept) {
  for (const optim::State& state : weight_states(a)) {
    const bool exact = !a.config.precision.half() && source.find(state.param->name, "main") != nullptr;
    if (!kept.contains(state.param->name)) step::fill(source, state, state.values(), exact ? "main" : "weight");
    for (const char* kind : {"weight", "main"}) source.mark_read(state.param->name, kind);  // one replaces the other
  }
}

void load_buffers(step::Assembly& a, checkpoint::TensorSource& source, const Kept& kept) {
  for (const optim::State& state : buffer_states(a)) {
    if (!kept.contains(state.param->name)) step::fill(source, state, state.values(), state.kind);
    else source.mark_read(state.param->name, state.kind);
  }
}

// Handles runs that froze other parameters. Optimizer state of parameters frozen in this run is skipped and reported
// in `outcome`. Throws if a trained parameter has no state in the checkpoint.
void check_moments(step::Assembly& a, checkpoint::TensorSource& source, LoadOutcome& outcome) {
  size_t left = 0;
  for (const files::TensorForm& tensor : source.tensors()) {
    if (tensor.kind == "weight" || tensor.kind == "main" || tensor.kind == "buffer") continue;
    if (config::trains(a.config, tensor.name)) continue;
    source.mark_read(tensor.name, tensor.kind);
    ++left;
  }
  if (left > 0)
    add_line(outcome.notes, base::concat("not loaded from the checkpoint: optimizer state of frozen parameters, ",
                                         left, " tensors"));
  std::set<std::string> missing;
  for (const optim::State& state : a.optimizer->state()) {
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
void load_optimizer(step::Assembly& a, checkpoint::TensorSource& source, bool moments, const Kept& kept) {
  for (const optim::State& state : a.optimizer->state()) {
    const bool main = state.kind == "main";
    if ((!main && !moments) || kept.contains(state.param->name)) continue;
    const bool as_weight = main && source.find(state.param->name, "main") == nullptr;
    const at::Tensor values = state.values();
    step::fill(source, state, values, as_weight ? "weight" : state.kind);
    a.optimizer->restore(state, values);
  }
}

// Throws for a checkpoint tensor that no rank uses, unless an allowed difference explains it.
struct Asked {
  bool begins = false, moments = false, allowed = false;
};
void check_all_read(const step::Assembly& a, checkpoint::TensorSource& source, checkpoint::Exchange& exchange,
                    const Asked& asked, LoadOutcome& outcome) {
  const auto [begins, moments, allowed] = asked;
  for (const files::TensorForm& tensor : source.tensors()) {
    if (begins && !config::loads(a.config, tensor.name)) source.mark_read(tensor.name, tensor.kind);
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

Json scaler_json(const step::Assembly& a, const kernels::StepValues& step) {
  if (!a.scaler) return nullptr;
  const optim::GradScalerState state = optim::scaler_state(step);
  return {{"scale", state.scale},
          {"growth_tracker", state.growth_tracker},
          {"hysteresis_tracker", state.hysteresis_tracker}};
}

// If the checkpoint has no loss scale, the initial scale is kept.
void load_step(step::Assembly& a, int64_t steps, const Json& scaler) {
  kernels::StepValues step = a.step.read();
  a.steps = steps;
  step.steps = static_cast<double>(steps);
  if (a.scaler && !scaler.is_null()) {
    optim::set_scaler_state(
        step, a.scaler->resumed({scaler.at("scale"), scaler.at("growth_tracker"), scaler.at("hysteresis_tracker")}));
  }
  a.step.write(step);
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
void check_data(step::Assembly& a, const checkpoint::Reader& reader, const data::TrainOrder& order,
                checkpoint::Exchange& exchange, LoadOutcome& outcome) {
  if (!a.optimizer || a.config.checkpoint.finetune || outcome.position.consumed_train_samples == 0) return;
  const SavedData saved = saved_data(reader.manifest());
  const std::string told = exchange.broadcast(exchange.rank() == 0 ? data_note({a.config, order}, saved.run()) : "");
  const std::string other =
      exchange.broadcast(exchange.rank() == 0 ? data_differences({a.config, order}, saved.run()) : "");
  if (!told.empty()) add_line(outcome.notes, told);
  if (other.empty()) return;
  check_consent(a.config.checkpoint, other, outcome.path, outcome.position.consumed_train_samples);
  add_line(outcome.notes, "resuming at sample " + std::to_string(outcome.position.consumed_train_samples) +
                              " of other training data:" + other);
}

optim::ScheduleSource schedule_source(const config::Optim& o) {
  if (o.override_opt_param_scheduler) return optim::ScheduleSource::override_checkpoint;
  return o.use_checkpoint_opt_param_scheduler ? optim::ScheduleSource::use_checkpoint
                                              : optim::ScheduleSource::must_agree;
}

Json tokenizer_json(const text::TokenizerFiles& tokenizer) {
  std::vector<std::string> names;
  for (const auto& [name, bytes] : tokenizer.files) names.push_back(name);
  return {{"type", tokenizer.type}, {"checksum", tokenizer.checksum}, {"files", names}};
}

// Lists later checkpoints in the folder in which the run resumes.
std::string branch_left_here(files::FileSystem& disk, const config::Checkpoint& c, const std::string& path) {
  const std::string folder = files::parent_directory(path);
  const auto used = checkpoint::parse_name(files::base_name(path));
  if (!used || c.save.empty() || !same_folder(folder, c.save, disk)) return "";
  std::string names;
  for (const auto& name : checkpoint::list_checkpoints(disk, folder)) {
    if (name.iteration > used->iteration) names += (names.empty() ? "" : ", ") + checkpoint::to_string(name);
  }
  return names.empty() ? "" : "this run leaves a branch: " + names + " in " + folder;
}

}  // namespace

std::string load_weights_of(step::Assembly& a, checkpoint::TensorSource& source) {
  GroupExchange exchange(a.groups().checkpoint);
  a.families.settle();
  Kept kept;
  if (a.optimizer) {
    check_load_patterns(a, source);
    kept = kept_by(a, source);
  }
  load_weights(a, source, kept);
  for (const optim::State& state : buffer_states(a)) {
    if (source.find(state.param->name, state.kind) != nullptr && !kept.contains(state.param->name))
      step::fill(source, state, state.values(), state.kind);
  }
  if (a.optimizer) load_optimizer(a, source, false, kept);
  LoadOutcome outcome;
  check_all_read(a, source, exchange, {.begins = a.optimizer != nullptr}, outcome);
  a.families.loaded();
  return left_out_text(kept, exchange);
}

std::string load_weights_of_directory(step::Assembly& a, files::FileSystem& disk) {
  hf::Source::Wanted wanted;
  if (a.optimizer) wanted = [&](const std::string& name) { return config::loads(a.config, name); };
  hf::Source source(disk, a.config.model.from, a.config.model, wanted);
  return load_weights_of(a, source);
}

checkpoint::RunState run_state(const step::Assembly& a, const Position& position, files::FileSystem& disk) {
  checkpoint::RunState state;
  state.iteration = position.iteration;
  state.consumed_samples = position.consumed_train_samples;
  config::Config saved = a.config;
  saved.model.from.clear();  // its weights are part of the checkpoint
  state.config_yaml = config::dump(saved);
  const kernels::StepValues step = a.step.read();
  Json extra{{"optimizer_steps", static_cast<int64_t>(step.steps)},
             {"skipped_iterations", position.skipped_iterations},
             {"scheduled_samples", position.scheduled_samples},
             {"grad_scaler", scaler_json(a, step)},
             {"train_sources", position.train_order.sources},
             {"train_epochs", position.train_order.epochs},
             {"seed", a.config.run.seed},  // dropout depends on seed, step and sample; nothing else is random
             {"schedule", schedule_json(a.schedule->args())}};
  if (position.tokenizer) {
    extra["tokenizer"] = tokenizer_json(*position.tokenizer);
    for (const auto& [name, bytes] : position.tokenizer->files) state.side_files.push_back({name, bytes});
  }
  state.extra = extra.dump();
  const bool same = !position.checkpoint.empty() &&
                    same_folder(files::parent_directory(position.checkpoint), a.config.checkpoint.save, disk);
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
  const config::Config lengths = step::in_samples(config, step::microbatch_schedule(config, data_parallel_size));
  optim::merge_schedules(optim::schedule_args(lengths), schedule_from(extra.at("schedule")),
                         schedule_source(config.optim));
}

LoadOutcome load_state(step::Assembly& a, const std::string& directory, files::FileSystem& disk,
                       const Position& expected) {
  GroupExchange exchange(a.groups().checkpoint);
  const config::Checkpoint& c = a.config.checkpoint;
  checkpoint::Found found = checkpoint::open_path(disk, directory, c.ckpt_step, exchange);
  LoadOutcome outcome;
  for (const std::string& problem : found.problems) add_line(outcome.notes, problem);
  if (!found.reader) {
    config::Config asked = a.config;
    asked.checkpoint.load = directory;
    check_fresh_start(asked, found.others, disk);
    return outcome;
  }
  checkpoint::Reader& reader = *found.reader;
  outcome.path = reader.directory();
  const auto allowed =
      check_loadable(a.config, expected.tokenizer.get(), reader.manifest(), outcome.path, a.optimizer != nullptr);
  for (const Difference& d : allowed) add_line(outcome.notes, d.key + " is " + d.here + " here and was " + d.there);
  const Json extra = Json::parse(reader.manifest().extra);
  const int64_t consumed = reader.manifest().consumed_samples;
  outcome.position = {reader.manifest().iteration,
                      consumed,
                      extra.value("scheduled_samples", consumed),
                      extra.value("skipped_iterations", int64_t{0}),
                      outcome.path,
                      expected.train_order,
                      expected.tokenizer};
  check_data(a, reader, expected.train_order, exchange, outcome);
  const bool with_optimizer = a.optimizer && !c.finetune && !c.no_load_optim;
  a.families.settle();  // a gather in flight reads the values that loading writes
  const bool begins = a.optimizer && c.finetune;
  Kept kept;
  if (begins) {
    check_load_patterns(a, reader);
    kept = kept_by(a, reader);
    outcome.left_out = left_out_text(kept, exchange);
  }
  load_weights(a, reader, kept);
  load_buffers(a, reader, kept);
  if (with_optimizer) check_moments(a, reader, outcome);
  if (a.optimizer) load_optimizer(a, reader, with_optimizer, kept);
  check_all_read(a, reader, exchange, {begins, with_optimizer, !allowed.empty()}, outcome);
  if (with_optimizer) {
    load_step(a, extra.at("optimizer_steps"), extra.value("grad_scaler", Json()));
    a.schedule = std::make_unique<optim::LrSchedule>(optim::merge_schedules(
        a.schedule->args(), schedule_from(extra.at("schedule")), schedule_source(a.config.optim)));
    a.rates.forget();
  }
  a.families.loaded();
  outcome.loaded = true;
  const config::Train saved = config::parse_saved(reader.manifest().config_yaml).train;
  outcome.metrics_file = saved.metrics_file;
  outcome.expert_trace_file = saved.expert_trace_file;
  if (exchange.rank() == 0 && a.optimizer) outcome.branch_left = branch_left_here(disk, c, outcome.path);
  return outcome;
}

}  // namespace metroplex::run
