#include "omp_spins.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace metroplex::test::omp_spins_test {
namespace {

TEST(OmpSpins, AreFewUnlessTheEnvironmentSpeaksOfThem) {
  unsetenv("GOMP_SPINCOUNT");
  unsetenv("OMP_WAIT_POLICY");
  EXPECT_TRUE(apps::spin_briefly());
  const char* const count = std::getenv("GOMP_SPINCOUNT");
  ASSERT_NE(count, nullptr);
  EXPECT_LT(std::stol(count), 10000) << "a millisecond on a CPU whose pause is long";
  EXPECT_FALSE(apps::spin_briefly()) << "a program that starts itself again would never begin";
  setenv("GOMP_SPINCOUNT", "7", 1);
  EXPECT_FALSE(apps::spin_briefly());
  EXPECT_STREQ(std::getenv("GOMP_SPINCOUNT"), "7");
  unsetenv("GOMP_SPINCOUNT");
  setenv("OMP_WAIT_POLICY", "active", 1);
  EXPECT_FALSE(apps::spin_briefly());
  EXPECT_EQ(std::getenv("GOMP_SPINCOUNT"), nullptr);
  unsetenv("OMP_WAIT_POLICY");
}

}  // namespace
}  // namespace metroplex::test::omp_spins_test
