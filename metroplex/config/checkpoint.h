// Saving and loading.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace metroplex::config {

struct Checkpoint {
  std::string save;                  // directory; empty: never save
  std::string load;                  // directory of checkpoints, or one checkpoint; empty: start fresh
  int64_t save_interval = 0;         // iterations; required with save
  int64_t save_retain_interval = 0;  // keep every n-th for good; 0: keep all
  int64_t keep_last = 0;             // keep n, counted back from the newest along the run; 0: all
  int64_t ckpt_step = 0;             // load this iteration instead of the latest
  bool finetune = false;             // weights only: iteration, optimizer and data start anew
  bool no_load_optim = false;
  bool no_load_rng = false;
  bool no_save_optim = false;
  bool exit_on_missing_checkpoint = false;
  std::vector<std::string> allow;  // keys that may differ from those of the checkpoint although they change its model
};

}  // namespace metroplex::config
