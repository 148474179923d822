// The process side of a run: how many ranks, where, over what, seeded how.
#pragma once

#include <cstdint>
#include <string>

#include "config/choice.h"

namespace metroplex::config {

enum class Backend { automatic, threads, gloo, nccl };
template <>
inline constexpr Word<Backend> kWords<Backend>[] = {
    {Backend::automatic, "auto"}, {Backend::threads, "threads"}, {Backend::gloo, "gloo"}, {Backend::nccl, "nccl"}};

enum class Device { automatic, cpu, cuda };
template <>
inline constexpr Word<Device> kWords<Device>[] = {
    {Device::automatic, "auto"}, {Device::cpu, "cpu"}, {Device::cuda, "cuda"}};

// Its keys, each with type, default and help: run_keys.inc.
struct Run {
#define KEY(type, name, value, limits, help) type name = value;
#include "config/run_keys.inc"
#undef KEY
};

}  // namespace metroplex::config
