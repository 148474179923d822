#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "comm/launch.h"
#include "support/error_of.h"

namespace metroplex::comm::launch_environment_test {
namespace {

std::optional<LaunchEnvironment> read(const std::map<std::string, std::string>& variables) {
  return launch_from_environment([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

std::string refusal(const std::map<std::string, std::string>& variables) {
  return test::catch_error([&] { read(variables); });
}

TEST(LaunchEnvironment, IsEmptyWithoutALauncher) { EXPECT_FALSE(read({{"HOME", "/root"}}).has_value()); }

TEST(LaunchEnvironment, ReadsTorchrunAndItsAgentStore) {
  std::map<std::string, std::string> variables{{"RANK", "5"},
                                               {"WORLD_SIZE", "8"},
                                               {"LOCAL_RANK", "1"},
                                               {"LOCAL_WORLD_SIZE", "4"},
                                               {"MASTER_ADDR", "10.0.0.1"},
                                               {"MASTER_PORT", "4711"}};
  for (const char* unused : {"", "False", "0"}) {
    variables["TORCHELASTIC_USE_AGENT_STORE"] = unused;
    EXPECT_FALSE(read(variables)->agent_store) << unused;
  }
  for (const char* used : {"1", "true", "True"}) {
    variables["TORCHELASTIC_USE_AGENT_STORE"] = used;
    EXPECT_TRUE(read(variables)->agent_store) << used;
  }
  const LaunchEnvironment launch = *read(variables);
  EXPECT_TRUE(launch.agent_store);
  EXPECT_EQ(launch.rank, 5);
  EXPECT_EQ(launch.world_size, 8);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_size, 4);
  EXPECT_EQ(launch.master_addr, "10.0.0.1");
  EXPECT_EQ(launch.master_port, 4711);
  variables["LOCAL_WORLD_SIZE"] = "0";
  EXPECT_NE(refusal(variables).find("LOCAL_WORLD_SIZE=0 is not an integer from 1"), std::string::npos);
}

TEST(LaunchEnvironment, NamesAllVariablesThatAreMissing) {
  const std::string error = refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}});
  EXPECT_NE(error.find("MASTER_ADDR, MASTER_PORT are not set"), std::string::npos) << error;
  EXPECT_NE(
      refusal({{"METROPLEX_RANK", "0"}}).find("METROPLEX_WORLD_SIZE, METROPLEX_MASTER_ADDR, METROPLEX_MASTER_PORT"),
      std::string::npos);
}

TEST(LaunchEnvironment, RefusesNumbersThatAreNone) {
  EXPECT_NE(refusal({{"RANK", "one"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}})
                .find("RANK=one is not an integer"),
            std::string::npos);
  EXPECT_NE(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "70000"}})
                .find("MASTER_PORT=70000"),
            std::string::npos);
  EXPECT_NE(
      refusal({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}).find("rank 2 of 2"),
      std::string::npos);
}

TEST(LaunchEnvironment, TakesTheFirstHostOfASlurmNodelist) {
  const auto host = [](const std::string& list) {
    return read({{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "1"}, {"SLURM_JOB_NODELIST", list}})
        ->master_addr;
  };
  EXPECT_EQ(host("node[003-005,7],other"), "node003");
  EXPECT_EQ(host("gpu-a,gpu-b"), "gpu-a");
  EXPECT_EQ(host("rack[2,4]n[10-12]"), "rack2n10");
  EXPECT_EQ(host("single"), "single");
}

TEST(LaunchEnvironment, FindsTheTasksOfASlurmNodeAndAPortOfTheJob) {
  std::map<std::string, std::string> variables{{"SLURM_PROCID", "9"},
                                               {"SLURM_NTASKS", "11"},
                                               {"SLURM_LOCALID", "1"},
                                               {"SLURM_JOB_NODELIST", "n[1-3]"},
                                               {"SLURM_TASKS_PER_NODE", "4(x2),3"},
                                               {"SLURM_NODEID", "2"},
                                               {"SLURM_JOB_ID", "1234567"}};
  EXPECT_EQ(read(variables)->local_size, 3);
  variables["SLURM_TASKS_PER_NODE"] = "4(x2),0";
  EXPECT_NE(refusal(variables).find("Slurm's tasks of each node, 4(x2),0,"), std::string::npos);
  variables["SLURM_TASKS_PER_NODE"] = "4(x2),3";
  variables["SLURM_NODEID"] = "1";
  EXPECT_EQ(read(variables)->local_size, 4);
  EXPECT_EQ(read(variables)->master_port, 20000 + 1234567 % 20000);
  variables["MASTER_PORT"] = "333";
  EXPECT_EQ(read(variables)->master_port, 333);
}

TEST(LaunchEnvironment, OpenMpiNeedsAMasterOnlyAcrossMachines) {
  std::map<std::string, std::string> variables{{"OMPI_COMM_WORLD_RANK", "1"},
                                               {"OMPI_COMM_WORLD_SIZE", "2"},
                                               {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  EXPECT_EQ(read(variables)->master_addr, "127.0.0.1");
  variables["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  EXPECT_NE(refusal(variables).find("MASTER_ADDR is not set"), std::string::npos);
}

TEST(LaunchEnvironment, ExplicitVariablesGoBeforeTheLaunchers) {
  const LaunchEnvironment launch = *read({{"RANK", "7"},
                                          {"METROPLEX_RANK", "1"},
                                          {"METROPLEX_WORLD_SIZE", "4"},
                                          {"METROPLEX_MASTER_ADDR", "h"},
                                          {"METROPLEX_MASTER_PORT", "12"}});
  EXPECT_EQ(launch.rank, 1);
  EXPECT_EQ(launch.local_size, 4);
}

TEST(LaunchEnvironment, ReadsHowOftenTorchrunHasRestartedTheJob) {
  std::map<std::string, std::string> variables{
      {"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}};
  EXPECT_EQ(read(variables)->attempt, 0);
  variables["TORCHELASTIC_RESTART_COUNT"] = "3";
  EXPECT_EQ(read(variables)->attempt, 3);
}

TEST(LaunchEnvironment, ReadsTheInterfaceThatTheEnvironmentChooses) {
  std::map<std::string, std::string> variables{{"OMPI_COMM_WORLD_RANK", "0"},
                                               {"OMPI_COMM_WORLD_SIZE", "2"},
                                               {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  EXPECT_EQ(read(variables)->interface, "");
  variables["GLOO_SOCKET_IFNAME"] = "ib0";
  EXPECT_EQ(read(variables)->interface, "ib0");
}

TEST(LaunchEnvironment, TellsABatchScriptOfSlurmFromATaskOfSrun) {
  using Variables = std::map<std::string, std::string>;
  const auto tasks = [](Variables variables) {
    return slurm_batch_tasks([&](const std::string& name) -> std::optional<std::string> {
      const auto found = variables.find(name);
      return found == variables.end() ? std::nullopt : std::optional(found->second);
    });
  };
  const auto with = [](Variables variables, const std::string& name, const std::string& value) {
    variables[name] = value;
    return variables;
  };
  const Variables batch{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"},         {"SLURM_LOCALID", "0"},
                        {"SLURM_NODEID", "0"}, {"SLURM_TASKS_PER_NODE", "8"}, {"SLURM_JOB_NODELIST", "localhost"}};
  EXPECT_EQ(tasks({}), 0);
  EXPECT_EQ(tasks(batch), 8);
  EXPECT_FALSE(read(batch).has_value());
  EXPECT_EQ(tasks({{"SLURM_PROCID", "0"}}), 1);
  for (const char* const name : {"SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "SLURM_STEPID"}) {
    EXPECT_EQ(tasks(with(batch, name, "3")), 0) << name;
    EXPECT_TRUE(read(with(batch, name, "3")).has_value()) << name;
  }
  for (const char* const own : {"4294967291", "4294967290", "batch"}) {  // the second: the shell of salloc
    EXPECT_EQ(tasks(with(with(batch, "SLURM_STEP_NUM_TASKS", "1"), "SLURM_STEP_ID", own)), 8) << own;
    EXPECT_FALSE(read(with(batch, "SLURM_STEPID", own)).has_value()) << own;
  }
  EXPECT_EQ(tasks(with(batch, "SLURM_PROCID", "1")), 0);
  for (const char* const name : {"METROPLEX_RANK", "RANK", "OMPI_COMM_WORLD_RANK"})
    EXPECT_EQ(tasks(with(batch, name, "0")), 0) << name;
}

}  // namespace
}  // namespace metroplex::comm::launch_environment_test
