#include "train/state.h"

#include <ATen/ops/empty.h>

#include <nlohmann/json.hpp>

#include <list>

#include "base/error.h"
#include "checkpoint/load.h"
#include "checkpoint/retention.h"
#include "checkpoint/save.h"
#include "comm/collectives.h"
#include "config/load.h"
#include "files/file_system.h"
#include "train/pieces.h"

namespace metroplex::train {
namespace {

using Json = nlohmann::json;

class GroupExchange final : public checkpoint::Exchange {
 public:
  explicit GroupExchange(const comm::Group& group) : group_(group) {}
  int rank() const override { return group_.index(); }
  int size() const override { return group_.size(); }
  std::vector<std::string> gather(const std::string& text) override { return comm::gather_strings(text, group_); }
  std::string broadcast(const std::string& text) override { return comm::broadcast_string(text, group_); }

 private:
  comm::Group group_;
};

// One tensor of the state (a weight, a moment) as far as this rank holds it: [begin, end) of the local tensor.
struct Held {
  const nn::Param* param;
  std::string kind;
  int64_t begin;
  at::Tensor values;
};

std::vector<Held> held_weights(const Assembly& a) {
  std::vector<Held> all;
  for (const optim::Slice& slice : a.slices) all.push_back({slice.param, "weight", slice.begin, slice.values});
  return all;
}

std::vector<Held> held_state(Assembly& a, bool with_optimizer) {
  std::vector<Held> all = held_weights(a);
  if (!with_optimizer || !a.optimizer) return all;
  for (const optim::State& state : a.optimizer->state())
    all.push_back({state.param, state.kind, state.begin, state.tensor});
  return all;
}

Json schedule_json(const optim::ScheduleArgs& s) {
  return {{"init_lr", s.init_lr},
          {"max_lr", s.max_lr},
          {"min_lr", s.min_lr},
          {"lr_warmup_steps", s.lr_warmup_steps},
          {"lr_decay_steps", s.lr_decay_steps},
          {"lr_decay_style", s.lr_decay_style},
          {"start_wd", s.start_wd},
          {"end_wd", s.end_wd},
          {"wd_incr_steps", s.wd_incr_steps},
          {"wd_incr_style", s.wd_incr_style},
          {"wsd_decay_steps", s.wsd_decay_steps},
          {"lr_wsd_decay_style", s.lr_wsd_decay_style}};
}

optim::ScheduleArgs schedule_from(const Json& j) {
  optim::ScheduleArgs s;
  s.init_lr = j.at("init_lr");
  s.max_lr = j.at("max_lr");
  s.min_lr = j.at("min_lr");
  s.lr_warmup_steps = j.at("lr_warmup_steps");
  s.lr_decay_steps = j.at("lr_decay_steps");
  s.lr_decay_style = j.at("lr_decay_style");
  s.start_wd = j.at("start_wd");
  s.end_wd = j.at("end_wd");
  s.wd_incr_steps = j.at("wd_incr_steps");
  s.wd_incr_style = j.at("wd_incr_style");
  s.wsd_decay_steps = j.at("wsd_decay_steps");
  s.lr_wsd_decay_style = j.at("lr_wsd_decay_style");
  return s;
}

// Ranks that hold the same share the writing: entry i is written by replica i mod their number.
bool writes_here(const Assembly& a, const nn::Param& param, size_t ordinal) {
  const comm::Group& replicas = a.data_parallel.replicas;
  return param.counts(a.groups().tp.first()) && static_cast<int>(ordinal % replicas.size()) == replicas.index();
}

// Fills held.values with what the checkpoint has under `kind`, whatever dtype it was written in.
void fill(checkpoint::Reader& reader, const Held& held, const std::string& kind) {
  const files::ManifestTensor* stored = reader.find(held.param->name, kind);
  const at::ScalarType dtype = held.values.scalar_type();
  const at::ScalarType source = stored != nullptr ? scalar_type_of(stored->dtype) : dtype;
  const bool direct = source == dtype && held.values.is_cpu();
  const at::Tensor target = direct ? held.values : at::empty(held.values.sizes(), source);
  auto* const bytes = static_cast<char*>(target.mutable_data_ptr());
  for (const BoxRange& box : box_ranges(*held.param, held.begin, held.begin + target.numel())) {
    reader.fill({held.param->name, kind, held.param->global_shape, box.offset, box.size, file_dtype(source),
                 bytes + (box.local - held.begin) * static_cast<int64_t>(target.element_size()), box.begin, box.end});
  }
  if (!direct) held.values.copy_(target);
}

// The parameter; in full precision where the checkpoint has its main parameter and the run has none.
void load_weights(Assembly& a, checkpoint::Reader& reader) {
  for (const Held& held : held_weights(a)) {
    const bool exact = !a.config.precision.half() && reader.find(held.param->name, "main") != nullptr;
    fill(reader, held, exact ? "main" : "weight");
  }
}

// Main parameters are weights, also of a run that only takes the weights over; a checkpoint without any has them as
// its weights, which may be more exact than this run's.
void load_optimizer(Assembly& a, checkpoint::Reader& reader, bool moments) {
  for (optim::State& state : a.optimizer->state()) {
    const bool main = state.kind == "main";
    if (!main && !moments) continue;
    const bool as_weight = main && reader.find(state.param->name, "main") == nullptr;
    fill(reader, {state.param, state.kind, state.begin, state.tensor}, as_weight ? "weight" : state.kind);
    a.optimizer->restore(state);
  }
}

Json scaler_json(const std::optional<optim::GradScaler>& scaler) {
  if (!scaler) return nullptr;
  const optim::GradScalerState state = scaler->state();
  return {{"scale", state.scale},
          {"growth_tracker", state.growth_tracker},
          {"hysteresis_tracker", state.hysteresis_tracker}};
}

// A checkpoint of a run that scaled nothing leaves the scaler at its start.
void load_scaler(std::optional<optim::GradScaler>& scaler, const Json& j) {
  if (scaler && !j.is_null()) scaler->load_state({j.at("scale"), j.at("growth_tracker"), j.at("hysteresis_tracker")});
}

// The order of the data and every dropout mask follow from the seed: a run that goes on keeps it.
void check_seed(const Json& extra, const config::Config& config, const std::string& directory) {
  const int64_t saved = extra.at("seed");
  const bool goes_on = !config.checkpoint.finetune && !config.checkpoint.no_load_rng;
  MPX_CHECK(!goes_on || saved == config.run.seed, "checkpoint", "run.seed is ", config.run.seed, " here and was ",
            saved, " in ", directory, "; the order of the data and dropout follow from it. Set run.seed=", saved,
            ", or checkpoint.no_load_rng to go on with another");
}

optim::ScheduleSource schedule_source(const config::Optim& o) {
  if (o.override_opt_param_scheduler) return optim::ScheduleSource::override_checkpoint;
  return o.use_checkpoint_opt_param_scheduler ? optim::ScheduleSource::use_checkpoint
                                              : optim::ScheduleSource::must_agree;
}

}  // namespace

SaveOutcome save_state(Assembly& a, const Position& position) {
  std::vector<checkpoint::LocalPiece> pieces;
  std::list<at::Tensor> alive;
  size_t ordinal = 0;
  for (const Held& held : held_state(a, !a.config.checkpoint.no_save_optim)) {
    if (!writes_here(a, *held.param, ordinal++)) continue;
    alive.push_back(held.values.cpu());
    const auto* const bytes = static_cast<const char*>(alive.back().const_data_ptr());
    for (const BoxRange& box : box_ranges(*held.param, held.begin, held.begin + held.values.numel())) {
      pieces.push_back({held.param->name, held.kind, held.param->global_shape, box.offset, box.size,
                        file_dtype(held.values.scalar_type()),
                        bytes + (box.local - held.begin) * static_cast<int64_t>(held.values.element_size()),
                        box.begin, box.end});
    }
  }
  checkpoint::RunState state;
  state.iteration = position.iteration;
  state.consumed_samples = position.consumed_train_samples;
  state.config_yaml = config::dump(a.config);
  state.extra =
      Json{{"optimizer_steps", a.optimizer->steps()},
           {"skipped_iterations", position.skipped_iterations},
           {"scheduled_samples", position.scheduled_samples},
           {"grad_scaler", scaler_json(a.scaler)},
           {"seed", a.config.run.seed},  // dropout is a function of seed, step and sample: nothing else is random
           {"schedule", schedule_json(a.schedule->args())}}
          .dump();
  GroupExchange exchange(a.groups().world);
  files::PosixFileSystem disk;
  const auto result = checkpoint::save(disk, a.config.checkpoint.save, state, pieces, exchange);
  if (result.ok && exchange.rank() == 0) {
    const checkpoint::Retention retention{a.config.checkpoint.keep_last, a.config.checkpoint.save_retain_interval};
    std::string notes = result.note;
    for (const std::string& problem : checkpoint::apply_retention(disk, a.config.checkpoint.save, retention)) {
      notes += (notes.empty() ? "" : "\n") + problem;
    }
    return {true, result.directory, notes};
  }
  return {result.ok, result.directory, result.error};
}

LoadOutcome load_state(Assembly& a, const std::string& directory) {
  GroupExchange exchange(a.groups().world);
  const config::Checkpoint& c = a.config.checkpoint;
  files::PosixFileSystem disk;
  checkpoint::Found found = checkpoint::open_path(disk, directory, c.ckpt_step, exchange);
  LoadOutcome outcome;
  for (const std::string& problem : found.problems) outcome.notes += (outcome.notes.empty() ? "" : "\n") + problem;
  if (!found.reader) {
    MPX_CHECK(!c.exit_on_missing_checkpoint, "checkpoint", "there is no checkpoint in checkpoint.load = ", directory,
              "; give another folder, or unset checkpoint.exit_on_missing_checkpoint to start from scratch");
    return outcome;
  }
  checkpoint::Reader& reader = *found.reader;
  const Json extra = Json::parse(reader.manifest().extra);
  outcome.path = reader.directory();
  if (a.optimizer) check_seed(extra, a.config, outcome.path);
  const bool with_optimizer = a.optimizer && !c.finetune && !c.no_load_optim;
  load_weights(a, reader);
  if (a.optimizer) load_optimizer(a, reader, with_optimizer);
  if (with_optimizer) {
    a.optimizer->set_steps(extra.at("optimizer_steps"));
    load_scaler(a.scaler, extra.value("grad_scaler", Json()));
    a.schedule = std::make_unique<optim::LrSchedule>(optim::merge_schedules(
        a.schedule->args(), schedule_from(extra.at("schedule")), schedule_source(a.config.optim)));
  }
  if (a.param_buffer) a.param_buffer->updated();
  outcome.loaded = true;
  const int64_t consumed = reader.manifest().consumed_samples;
  outcome.position = {reader.manifest().iteration, consumed, extra.value("scheduled_samples", consumed),
                      extra.value("skipped_iterations", int64_t{0})};
  return outcome;
}

}  // namespace metroplex::train
