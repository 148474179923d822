// All ranks report different configurations with the same message before training.
#include "run/same_config.h"

#include <functional>
#include <mutex>
#include <set>

#include "config/fields.h"
#include "support/run_ranks.h"

namespace metroplex::test::same_config_ranks_test {
namespace {

// Messages that four ranks report after `change` modified each rank's configuration; one entry if all agree.
std::set<std::string> heard(const std::function<void(config::Config&, int rank)>& change) {
  std::mutex mutex;
  std::set<std::string> texts;
  run_ranks(4, {.tp = 2, .dp = 2}, [&](const comm::World& world) {
    config::Config config;
    change(config, world.rank());
    const std::string text = run::config_difference(config, world);
    const std::lock_guard lock(mutex);
    texts.insert(text);
  });
  return texts;
}

using Messages = std::set<std::string>;

TEST(SameConfigRanks, EqualConfigurationsSayNothing) {
  EXPECT_EQ(heard([](config::Config& config, int) { config.optim.lr = 0.1; }), Messages{""});
}

TEST(SameConfigRanks, AllHearOfTheKeysWithBothValuesAndBothRanks) {
  const std::string rate = config::number_text(config::Optim{}.lr);
  EXPECT_EQ(heard([](config::Config& config, int rank) {
              if (rank == 2) config.optim.lr = 0.25;
              if (rank == 2) config.train.train_iters = 7;
            }),
            Messages{"optim.lr = " + rate +
                     " on rank 0 and 0.25 on rank 2, train.train_iters = 0 on rank 0 and 7 on rank 2"});
  EXPECT_EQ(heard([](config::Config& config, int rank) {
              if (rank == 0) config.run.seed = 3;
            }),
            Messages{"run.seed = 3 on rank 0 and 1234 on rank 1"});
}

TEST(SameConfigRanks, TheLowestRankThatDiffersIsNamedAndNoMoreThanFourKeys) {
  EXPECT_EQ(
      heard([](config::Config& config, int rank) {
        if (rank == 3) config.run.seed = 3;
        if (rank == 1) config.model.num_layers = config.model.hidden_size = 96;
        if (rank == 1) config.train.train_iters = config.train.eval_interval = config.train.exit_interval = 5;
      }),
      Messages{"model.num_layers = 4 on rank 0 and 96 on rank 1, model.hidden_size = 256 on rank 0 and 96 on rank 1, "
               "train.train_iters = 0 on rank 0 and 5 on rank 1, train.eval_interval = 0 on rank 0 and 5 on rank 1, "
               "and 1 more"});
}

TEST(SameConfigRanks, ALineBreakInAValueStaysInItsLine) {
  EXPECT_EQ(heard([](config::Config& config, int rank) { config.checkpoint.save = rank == 3 ? "a\nb" : "a"; }),
            Messages{"checkpoint.save = \"a\" on rank 0 and \"a\\x0ab\" on rank 3"});
}

TEST(SameConfigRanks, WhatBelongsToAMachineOrToRankZeroMayDiffer) {
  EXPECT_EQ(heard([](config::Config& config, int rank) {
              const std::string own = std::to_string(rank);
              config.run.nproc = rank;
              config.run.threads_per_rank = rank;
              config.run.network_interface = "eth" + own;
              config.data.num_workers = rank;
              config.memory.device_memory_gib = rank;
              config.memory.offload_directory = own;
              config.train.progress = rank == 0;
              config.train.metrics_file = own;
              config.train.tensorboard_dir = own;
            }),
            Messages{""});
}

}  // namespace
}  // namespace metroplex::test::same_config_ranks_test
