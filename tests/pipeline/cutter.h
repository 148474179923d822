// An observer of stages without effect. With `cuts` at registration, it makes every segment a separate autograd
// region (`Island`).
#pragma once

#include "nn/stage_observer.h"

namespace metroplex::test {

struct Cutter final : nn::StageObserver {
  void before(const nn::IslandEvent&) override {}
  void after(const nn::IslandEvent&) override {}
};

}  // namespace metroplex::test
