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

namespace metroplex::train {
namespace {

using Json = nlohmann::json;

class GroupExchange final : public checkpoint::Exchange {
 public:
  explicit GroupExchange(const comm::Group& group) : group_(group) {}
  int rank() const override { return group_.index(); }
  int size() const override { return group_.size(); }
  std::vector<std::string> gather(const std::string& text) override {
    auto all = comm::all_gather_strings(text, group_);
    return group_.first() ? all : std::vector<std::string>{};
  }
  std::string broadcast(const std::string& text) override {
    return comm::all_gather_strings(group_.first() ? text : std::string(), group_).front();
  }

 private:
  comm::Group group_;
};

files::Dtype file_dtype(at::ScalarType dtype) {
  MPX_ASSERT(dtype == at::kFloat || dtype == at::kDouble, "a checkpoint of another dtype");
  return dtype == at::kDouble ? files::Dtype::kF64 : files::Dtype::kF32;
}

// A tensor of the state (a weight, a moment): same shape and placement as its parameter.
struct Stored {
  const nn::Param* param;
  std::string kind;
  at::Tensor tensor;
};

std::vector<Stored> stored_tensors(Assembly& a, bool with_optimizer) {
  std::vector<Stored> all;
  for (const nn::Param* param : a.params) all.push_back({param, "weight", param->data});
  if (with_optimizer && a.optimizer) {
    for (const optim::State& state : a.optimizer->state()) all.push_back({state.param, state.kind, state.tensor});
  }
  return all;
}

// The boxes of a local tensor: where each lies in the whole, and the local elements.
struct Box {
  std::vector<int64_t> offset, size;
  at::Tensor local;
};

std::vector<Box> boxes_of(const Stored& stored) {
  const nn::Param& param = *stored.param;
  std::vector<int64_t> offset(param.global_shape.size(), 0);
  if (!param.sharded()) return {{offset, param.global_shape, stored.tensor}};
  std::vector<Box> boxes;
  for (const nn::RowRange& range : param.shard.ranges) {
    if (range.size == 0) continue;
    std::vector<int64_t> size = param.global_shape;
    offset[param.shard.dim] = range.global;
    size[param.shard.dim] = range.size;
    boxes.push_back({offset, size, stored.tensor.narrow(param.shard.dim, range.local, range.size)});
  }
  return boxes;
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

// Replicas over data parallelism share the writing: parameter i is written by data-parallel rank i mod dp.
bool writes_here(const Assembly& a, const nn::Param& param, size_t ordinal) {
  const comm::Group& dp = a.groups().dp_cp;
  return param.counts(a.groups().tp.first()) && static_cast<int>(ordinal % dp.size()) == dp.index();
}

void fill(checkpoint::Reader& reader, const Stored& stored) {
  for (const Box& box : boxes_of(stored)) {
    const bool direct = box.local.is_contiguous();
    at::Tensor target = direct ? box.local : at::empty(box.local.sizes(), box.local.options());
    reader.fill({stored.param->name, stored.kind, stored.param->global_shape, box.offset, box.size,
                 file_dtype(target.scalar_type()), target.mutable_data_ptr()});
    if (!direct) box.local.copy_(target);
  }
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
  for (const Stored& stored : stored_tensors(a, !a.config.checkpoint.no_save_optim)) {
    if (!writes_here(a, *stored.param, ordinal++)) continue;
    for (const Box& box : boxes_of(stored)) {
      alive.push_back(box.local.contiguous());
      pieces.push_back({stored.param->name, stored.kind, stored.param->global_shape, box.offset, box.size,
                        file_dtype(stored.tensor.scalar_type()), alive.back().const_data_ptr()});
    }
  }
  checkpoint::RunState state;
  state.iteration = position.iteration;
  state.consumed_samples = position.consumed_train_samples;
  state.config_yaml = config::dump(a.config);
  state.extra =
      Json{{"optimizer_steps", a.optimizer->steps()},
           {"skipped_iterations", position.skipped_iterations},
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
  for (const Stored& stored : stored_tensors(a, with_optimizer)) fill(reader, stored);
  if (with_optimizer) a.optimizer->set_steps(extra.at("optimizer_steps"));
  if (with_optimizer) {
    a.schedule = std::make_unique<optim::LrSchedule>(optim::merge_schedules(
        a.schedule->args(), schedule_from(extra.at("schedule")), schedule_source(a.config.optim)));
  }
  outcome.loaded = true;
  outcome.position = {reader.manifest().iteration, reader.manifest().consumed_samples,
                      extra.value("skipped_iterations", int64_t{0})};
  return outcome;
}

}  // namespace metroplex::train
