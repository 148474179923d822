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

// Number formats, loss scale, and checks of losses and gradients. fp64 is a full training dtype; tests compare
// layouts in it.

enum class ParamsDtype { fp32, fp64, bf16, fp16 };
template <>
inline constexpr Word<ParamsDtype> kWords<ParamsDtype>[] = {{ParamsDtype::fp32, "fp32"},
                                                            {ParamsDtype::fp64, "fp64"},
                                                            {ParamsDtype::bf16, "bf16"},
                                                            {ParamsDtype::fp16, "fp16"}};

enum class MainGradsDtype { automatic, fp32, params };
template <>
inline constexpr Word<MainGradsDtype> kWords<MainGradsDtype>[] = {
    {MainGradsDtype::automatic, "auto"}, {MainGradsDtype::fp32, "fp32"}, {MainGradsDtype::params, "params"}};

inline bool is_half(ParamsDtype dtype) { return dtype == ParamsDtype::bf16 || dtype == ParamsDtype::fp16; }

struct Precision {
#define KEY(type, name, value, limits, help) type name = value;
#include "config/precision_keys.inc"
#undef KEY

  bool half() const { return is_half(params_dtype); }
  bool scales_loss() const { return params_dtype == ParamsDtype::fp16 || loss_scale > 0; }
  bool scales_dynamically() const { return params_dtype == ParamsDtype::fp16 && loss_scale == 0; }
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
