// The training loop: data, steps, iteration line, evaluation, saving, stopping. All ranks of a world call its two
// functions together.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/log.h"
#include "comm/world.h"
#include "config/config.h"
#include "data/sample.h"
#include "files/file_system.h"
#include "text/tokenizer_files.h"
#include "step/assemble.h"
#include "run/metrics.h"
#include "step/timers.h"

namespace metroplex::run {

// External services of a trainer. Every rank has its own; only rank 0 writes to the log.
struct TrainerEnvironment {
  base::Log* log = nullptr;
  std::shared_ptr<files::FileSystem> disk;         // must be set
  std::function<bool()> stop_requested;            // polled once per step, evaluation included; SIGTERM makes it true
  std::function<void(int64_t, int64_t)> progress;  // (iteration, total); may be empty
};

enum class Ending { finished, stopped /* stop requested; saved */, exit_interval };

struct RunSummary {
  Ending ending = Ending::finished;
  int64_t iteration = 0;
  int64_t consumed_samples = 0;
  double last_loss = 0;
  double test_loss = -1, validation_loss = -1;  // -1: not evaluated
  std::string last_checkpoint;                  // empty: none was saved
  bool last_save_failed = false;                // on every rank: progress since the last checkpoint is lost
  bool export_failed = false;                   // rank 0: checkpoint.export_hf was not written
  std::string on_disk;                          // rank 0, after a failed save: the reason and the newest checkpoint
};

// Runs a whole training job as one rank of `world`. Requires a resolved and checked `config`. Collective. vocab_size
// and eod come from the tokenizer (eod -1: none).
struct TokenizerFacts {
  int64_t vocab_size = 0;
  int64_t eod = -1;
  std::shared_ptr<const text::TokenizerFiles> files;  // null: unavailable
  std::string words = {};                             // text::words_of; "" without a tokenizer
};
RunSummary run_training(const config::Config& config, const comm::World& world, const TokenizerFacts& tokenizer,
                        const TrainerEnvironment& environment);

// Evaluates a checkpoint (checkpoint.load) on the validation and test sets, without training.
RunSummary run_evaluation(const config::Config& config, const comm::World& world, const TokenizerFacts& tokenizer,
                          const TrainerEnvironment& environment);

}  // namespace metroplex::run
