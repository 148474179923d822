// An observer of stages that does nothing: told to cut, it makes every border between segments one.
#pragma once

#include "nn/stage_observer.h"

namespace metroplex::test {

struct Cutter final : nn::StageObserver {
  void before(const nn::IslandEvent&) override {}
  void after(const nn::IslandEvent&) override {}
};

}  // namespace metroplex::test
