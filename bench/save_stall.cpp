// save_stall FOLDER: executes commands from stdin, one per line. "sync" saves with run::save_state, "async" with
// run::BackgroundSaves. "step" is a training step, "step-async" one during a background save. Prints "stall SECONDS
// total SECONDS bytes N": the time that the run waits, and the time until the checkpoint is published. One rank,
// GPT-2 with 27 M parameters in fp32 and Adam's moments.
#include <filesystem>
#include <iostream>
#include <string>

#include "comm/launch.h"
#include "config/load.h"
#include "config/validate.h"
#include "files/file_system.h"
#include "nn/microbatch.h"
#include "timing.h"
#include "run/saving.h"
#include "step/state_tensors.h"
#include "step/step.h"

#include <ATen/ATen.h>

namespace {

using namespace metroplex;
using bench::Clock;
using bench::seconds_since;

constexpr int64_t kVocab = 16384, kSequence = 64;

config::Config gpt(const std::string& folder) {
  config::Config config;
  config.model.num_layers = 6;
  config.model.hidden_size = 512;
  config.model.num_attention_heads = 8;
  config.model.vocab_size = kVocab;
  config.model.max_position_embeddings = kSequence;
  config.train.seq_length = kSequence;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 1;
  config.train.train_iters = 1000000;
  config.optim.lr = 1e-4;
  config.optim.lr_decay_style = "constant";
  config.data.mock_data = true;
  config.checkpoint.save = folder;
  config.checkpoint.save_interval = 1;
  config.checkpoint.keep_last = 1;
  config.checkpoint.async_save = true;
  config::check(config, 1);
  return config::resolved(config, 1);
}

std::vector<nn::Microbatch> batch() {
  nn::Microbatch batch;
  batch.tokens = at::randint(0, kVocab, {1, kSequence}, at::kLong);
  batch.labels = at::randint(0, kVocab, {1, kSequence}, at::kLong);
  batch.position_ids = at::arange(kSequence, at::kLong).unsqueeze(0).contiguous();
  batch.loss_mask = at::ones({1, kSequence});
  batch.mask_sum = kSequence;
  nn::set_counters(batch, 1, at::full({1}, 0, at::kLong));
  return {batch};
}

void serve(const config::Config& config, const comm::World& world) {
  const auto assembly = step::assemble(config, world, kVocab);
  files::PosixFileSystem disk;
  run::BackgroundSaves saves(*assembly, disk);
  const std::vector<nn::Microbatch> batches = batch();
  run::Position position;
  const auto step = [&] {
    ++position.iteration;
    step::train_step(*assembly, {batches, position.iteration, 0, false, {}});
  };
  step();
  for (std::string word; std::getline(std::cin, word);) {
    const Clock::time_point start = Clock::now();
    double stall = 0;
    run::SaveOutcome outcome{true, "", "", ""};
    if (word == "sync") {
      step();
      const Clock::time_point save = Clock::now();
      outcome = run::save_state(*assembly, position, disk);
      stall = seconds_since(save);
      std::cout << "stall " << stall << " total " << stall;
    } else if (word == "async" || word == "step-async") {
      step();
      const Clock::time_point save = Clock::now();
      saves.begin(position);
      stall = seconds_since(save);
      if (word == "step-async") {
        const Clock::time_point next = Clock::now();
        step();
        stall = seconds_since(next);
      }
      outcome = *saves.wait();
      std::cout << "stall " << stall << " total " << seconds_since(save);
    } else {
      step();
      std::cout << "stall " << seconds_since(start) << " total 0";
    }
    MPX_CHECK(outcome.saved, "bench", outcome.problem);
    std::cout << " bytes " << step::copy_bytes(assembly->process, assembly->model, assembly->optimization)
              << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  bench::use_run_settings(argv);
  if (argc != 2) return std::cerr << "usage: save_stall FOLDER\n", 2;
  const config::Config config = gpt(argv[1]);
  comm::run_threads(1, topology::RankGrid(1, config.parallel), {},
                    [&](const comm::World& world) { serve(config, world); });
  return 0;
}
