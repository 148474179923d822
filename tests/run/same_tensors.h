// Two checkpoints of any layouts hold the same tensors.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "checkpoint/compare.h"
#include "checkpoint/load.h"
#include "files/file_system.h"

namespace metroplex::test {

inline void expect_same_tensors(const std::string& got, const std::string& wanted) {
  files::PosixFileSystem disk;
  checkpoint::Reader a(disk, got), b(disk, wanted);
  const auto differences = checkpoint::compare(a, b);
  EXPECT_FALSE(differences.empty());
  for (const checkpoint::TensorDifference& d : differences) {
    EXPECT_EQ(d.problem, "") << d.name << " " << d.kind;
    EXPECT_EQ(d.different_elements, 0) << d.name << " " << d.kind << ", by up to " << d.max_absolute;
  }
}

}  // namespace metroplex::test
