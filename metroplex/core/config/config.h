// The full configuration of a run: one struct per section. fields.h visits its fields, load.h reads them from YAML
// and --section.key=value, validate.h checks them together. A module takes its own section by const reference.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "config/choice.h"
#include "config/cuda_graph.h"
#include "config/memory.h"
#include "config/model.h"
#include "config/optim.h"
#include "config/parallel.h"
#include "config/peft.h"
#include "config/precision.h"

namespace metroplex::config {

// Processes of a run: number of ranks, device, backend, seed.

enum class Backend { automatic, threads, gloo, nccl };
template <>
inline constexpr Word<Backend> kWords<Backend>[] = {
    {Backend::automatic, "auto"}, {Backend::threads, "threads"}, {Backend::gloo, "gloo"}, {Backend::nccl, "nccl"}};

enum class Device { automatic, cpu, cuda };
template <>
inline constexpr Word<Device> kWords<Device>[] = {
    {Device::automatic, "auto"}, {Device::cpu, "cpu"}, {Device::cuda, "cuda"}};

struct Run {
#define KEY(type, name, value, limits, help) type name = value;
#include "config/run_keys.inc"
#undef KEY
};

// Training loop: batch sizes, length, logging.

struct Train {
#define KEY(type, name, value, limits, help) type name = value;
#include "config/train_keys.inc"
#undef KEY

  bool captures_parts() const;      // partial graphs: local, transformer_engine
  bool captures_iteration() const;  // one graph: full_iteration
  // Returns the captured parts of layers: all if none is named. Empty without partial graphs.
  CudaGraphModules captured_modules() const;
};

struct Checkpoint {
#define KEY(type, name, value, limits, help) type name = value;
#include "config/checkpoint_keys.inc"
#undef KEY
};

// Data sources, as in Megatron's GPT dataset.

enum class TokenizerType { none, bytes, sentencepiece, bpe };
template <>
inline constexpr Word<TokenizerType> kWords<TokenizerType>[] = {{TokenizerType::none, "none"},
                                                                {TokenizerType::bytes, "bytes"},
                                                                {TokenizerType::sentencepiece, "sentencepiece"},
                                                                {TokenizerType::bpe, "bpe"}};

enum class Dataloader { single, cyclic };
template <>
inline constexpr Word<Dataloader> kWords<Dataloader>[] = {{Dataloader::single, "single"},
                                                          {Dataloader::cyclic, "cyclic"}};

struct Data {
#define KEY(type, name, value, limits, help) type name = value;
#include "config/data_keys.inc"
#undef KEY
};

struct Config {
  Run run;
  Model model;
  Peft peft;
  Parallel parallel;
  Optim optim;
  Precision precision;
  Memory memory;
  Data data;
  Checkpoint checkpoint;
  Train train;
};

// Returns the padded rows of the embedding table: the next multiple of make_vocab_size_divisible_by * tp (Megatron's
// rule).
int64_t padded_vocab_size(int64_t vocab_size, int64_t divisible_by, int64_t tp);

}  // namespace metroplex::config
