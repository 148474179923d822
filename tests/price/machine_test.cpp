// Machine descriptions: built-in files, their sources, round trips, and errors.
#include "price/machine.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace metroplex::test::machine_test {
namespace {

using price::Machine;
using price::read_machine;

std::string refusal(const std::string& yaml) {
  try {
    read_machine(yaml, "file.yaml");
  } catch (const base::Error& error) { return error.what(); }
  return "";
}

TEST(Machine, EveryBuiltInFigureHasASource) {
  const std::vector<std::string> names = price::known_machines();
  EXPECT_GE(names.size(), 6u);
  for (const std::string& name : names) {
    const Machine machine = price::find_machine(name);
    EXPECT_GT(machine.memory_bytes_per_s, 0) << name;
    if (!machine.gpu) continue;
    const auto has_source = [&](const std::string& key) {
      for (std::string path = key;;) {  // the figure's own key, or that of a section
        if (machine.sources.contains(path)) return true;
        const size_t dot = path.rfind('.');
        if (dot == std::string::npos) return false;
        path.resize(dot);
      }
    };
    for (const auto& [dtype, flops] : machine.peak_flops)
      EXPECT_TRUE(has_source("device.peak_flops." + dtype)) << name;
    for (const auto& [kind, curve] : machine.shares) EXPECT_TRUE(has_source("operators." + kind)) << name << kind;
    for (const char* key :
         {"device.memory_bytes", "device.memory_bytes_per_s", "device.launch_s", "host.bytes_per_s"})
      EXPECT_TRUE(has_source(key)) << name << " " << key;
    for (const price::Domain& domain : machine.cluster.domains)
      EXPECT_TRUE(has_source("links." + domain.name + ".bytes_per_s")) << name << " " << domain.name;
  }
}

TEST(Machine, WritesAndReadsTheSame) {
  Machine machine = price::find_machine("h100");
  machine.measured["mm bf16"] = {{1e6, 1e9}, {1e9, 1e12}};
  machine.own_call_s = 3e-6;
  const Machine read = read_machine(price::write_machine(machine), "again");
  EXPECT_EQ(price::write_machine(read), price::write_machine(machine));
  EXPECT_EQ(read.cluster.domains.size(), machine.cluster.domains.size());
  EXPECT_DOUBLE_EQ(read.measured.at("mm bf16")[1].value, 1e12);
}

TEST(Machine, RefusesWrongFiles) {
  const std::string links = "links: [{name: a, ranks: 0, latency_s: 1e-6, bytes_per_s: 1e9}]\n";
  EXPECT_EQ(refusal(links), "");
  for (const auto& [yaml, words] : std::vector<std::pair<std::string, std::string>>{
           {"device: {memory_bytes: many}\n", "device.memory_bytes = many: must be a finite number"},
           {"device: {memory_bytes: -1}\n", "device.memory_bytes = -1"},
           {"device: {memory_bytes: .nan}\n", "device.memory_bytes = .nan"},
           {"device: {memory: 1}\n", "device.memory = (present): is not a known key"},
           {"device: 3\n", "device = 3: must be a map"},
           {"operators: {matmul: [{flops: 2, share: 0.5}, {flops: 1, share: 0.5}]}\n", "sizes must ascend"},
           {"operators: {matmul: []}\n", "operators.matmul = (nothing): must be a list of points"},
           {"links: [{name: a, ranks: 8, latency_s: 0, bytes_per_s: 1}]\n", "links[0].ranks = 8: must be 0"},
           {"links: [{name: a, ranks: 0, latency_s: 0, bytes_per_s: 0}]\n", "links[0].bytes_per_s = 0"},
           {"a: [\n", "file.yaml: line"},
           {"3\n", "must be a map with device"}})
    EXPECT_NE(refusal(yaml).find(words), std::string::npos) << yaml << refusal(yaml);
  EXPECT_THROW(price::find_machine("no such machine"), base::Error);
}

}  // namespace
}  // namespace metroplex::test::machine_test
