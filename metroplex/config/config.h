// The whole configuration of a run: one struct a section. Fields are visited (fields.h), loaded from YAML and
// --section.key=value (load.h), and checked together (validate.h). A room takes its own section by const reference.
#pragma once

#include "config/checkpoint.h"
#include "config/data.h"
#include "config/memory.h"
#include "config/model.h"
#include "config/optim.h"
#include "config/parallel.h"
#include "config/precision.h"
#include "config/run.h"
#include "config/train.h"

namespace metroplex::config {

struct Config {
  Run run;
  Model model;
  Parallel parallel;
  Optim optim;
  Precision precision;
  Memory memory;
  Data data;
  Checkpoint checkpoint;
  Train train;
};

// Padded rows of the vocabulary table: the next multiple of make_vocab_size_divisible_by * tp (Megatron's rule).
int64_t padded_vocab_size(int64_t vocab_size, int64_t divisible_by, int64_t tp);

}  // namespace metroplex::config
