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
  checkpoint::Reader reader(disk, got), b(disk, wanted);
  const auto differences = checkpoint::compare(reader, b);
  EXPECT_FALSE(differences.empty());
  for (const checkpoint::TensorDifference& difference : differences) {
    EXPECT_EQ(difference.problem, "") << difference.name << " " << difference.kind;
    EXPECT_EQ(difference.different_elements, 0)
        << difference.name << " " << difference.kind << ", by up to " << difference.max_absolute;
  }
}

}  // namespace metroplex::test
