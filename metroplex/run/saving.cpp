#include "run/saving.h"

#include <ATen/ops/empty.h>

#include <chrono>
#include <cstring>
#include <exception>

#include "checkpoint/directory.h"
#include "checkpoint/pieces.h"
#include "checkpoint/save.h"
#include "step/state_tensors.h"

namespace metroplex::run {
namespace {

// The contents of a save, or the exception that prevented them. checkpoint::save rethrows it and reports it to all
// ranks.
struct Contents {
  checkpoint::RunState state;  // on rank 0
  std::vector<checkpoint::LocalPiece> pieces;
  std::exception_ptr failed;
};

template <class Work>
void capture_errors(Contents& contents, const Work& work) {
  try {
    work();
  } catch (const std::exception&) { contents.failed = std::current_exception(); }
}

Contents collect_contents(const step::ProcessContext& process, step::RankModel& model,
                          step::Optimization& optimization, const Position& position, files::FileSystem& disk) {
  Contents contents;
  capture_errors(contents, [&] {
    if (process.groups().checkpoint.first()) contents.state = run_state(process, optimization, position, disk);
    contents.pieces = regions_to_write(process, model, optimization);
  });
  return contents;
}

// Runs on rank 0 after a successful save.
void clean_up(files::FileSystem& disk, const config::Checkpoint& checkpoint, SaveOutcome& outcome) {
  const auto result =
      checkpoint::apply_retention(disk, checkpoint.save, {checkpoint.keep_last, checkpoint.save_retain_interval});
  for (const std::string& problem : result.problems)
    outcome.problem += (outcome.problem.empty() ? "" : "\n") + problem;
  std::string names;
  for (const auto& name : result.removed_branch) names += (names.empty() ? "" : ", ") + checkpoint::to_string(name);
  if (!names.empty())
    outcome.note =
        "removed " + names + " from a branch that " + files::base_name(outcome.path) + " does not continue";
}

SaveOutcome write(const Contents& contents, const config::Checkpoint& checkpoint, const comm::Group& group,
                  files::FileSystem& disk) {
  GroupExchange exchange(group);
  const auto pieces = [&] {
    if (contents.failed) std::rethrow_exception(contents.failed);
    return contents.pieces;
  };
  const auto result = checkpoint::save(disk, checkpoint.save, contents.state, pieces, exchange);
  SaveOutcome outcome{result.ok, result.directory, result.ok ? result.note : result.error, ""};
  if (result.ok && exchange.rank() == 0) clean_up(disk, checkpoint, outcome);
  return outcome;
}

}  // namespace

SaveOutcome save_state(step::Assembly& assembly, const Position& position, files::FileSystem& disk) {
  return write(collect_contents(assembly.process, assembly.model, assembly.optimization, position, disk),
               assembly.process.config.checkpoint, assembly.process.groups().checkpoint, disk);
}

BackgroundSaves::BackgroundSaves(step::Assembly& assembly, files::FileSystem& disk)
    : assembly_(assembly),
      disk_(disk),
      memory_(at::empty({copy_bytes(assembly.process, assembly.model, assembly.optimization)},
                        at::TensorOptions(at::kByte))) {}  // pageable: pinned memory may take up to twice the size

std::vector<checkpoint::LocalPiece> BackgroundSaves::copy_pieces(std::vector<checkpoint::LocalPiece> pieces) {
  char* to = static_cast<char*>(memory_.mutable_data_ptr());
  for (checkpoint::LocalPiece& piece : pieces) {
    char* next = to;
    piece.produce([&next](const void* data, size_t bytes) {
      std::memcpy(next, data, bytes);
      next += bytes;
    });
    piece.produce = nullptr;
    piece.data = to;
    to += step::copy_bytes(piece);
  }
  return pieces;
}

void BackgroundSaves::begin(const Position& position) {
  MPX_ASSERT(!in_flight(), "a run can only have one save in flight");
  Contents contents = collect_contents(assembly_.process, assembly_.model, assembly_.optimization, position, disk_);
  capture_errors(contents, [&] {
    if (!contents.failed) contents.pieces = copy_pieces(std::move(contents.pieces));
  });
  outcome_ = std::async(std::launch::async,
                        [this, contents = std::move(contents), group = assembly_.process.groups().checkpoint] {
                          return write(contents, assembly_.process.config.checkpoint, group, disk_);
                        });
}

std::optional<SaveOutcome> BackgroundSaves::take_finished() {
  if (!in_flight() || outcome_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return std::nullopt;
  return outcome_.get();
}

std::optional<SaveOutcome> BackgroundSaves::wait() {
  if (!in_flight()) return std::nullopt;
  return outcome_.get();
}

}  // namespace metroplex::run
