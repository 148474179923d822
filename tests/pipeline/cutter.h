// An observer of stages without effect. With `cuts` at registration, it makes every segment a separate autograd
// region (`Region`).
#pragma once

#include "nn/stage_observer.h"

namespace metroplex::test {

struct NoopObserver final : nn::StageObserver {
  void before(const nn::RegionEvent&) override {}
  void after(const nn::RegionEvent&) override {}
};

}  // namespace metroplex::test
