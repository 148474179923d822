// Machine descriptions: built-in files, their sources, round trips, and errors.
#include "price/machine.h"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>

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
  machine.measured["mm bf16"] = {{1e6, 1e3, 1e-3}, {1e9, 2e5, 2e-3}};
  machine.own_call_s = 3e-6;
  const Machine read = read_machine(price::write_machine(machine), "again");
  EXPECT_EQ(price::write_machine(read), price::write_machine(machine));
  EXPECT_EQ(read.capability, 90);
  EXPECT_EQ(read.cluster.domains.size(), machine.cluster.domains.size());
  EXPECT_DOUBLE_EQ(read.measured.at("mm bf16")[1].seconds, 2e-3);
  EXPECT_DOUBLE_EQ(read.measured.at("mm bf16")[1].bytes, 2e5);
}

// A valid file whose first `before` is replaced with `after`.
std::string edited(const std::string& before, const std::string& after) {
  std::string yaml =
      "device: {gpu: false, peak_flops: {fp32: 1e12}, memory_bytes_per_s: 1e11, launch_s: 1e-6}\n"
      "operators: {matmul: [{flops: 1, share: 0.5}, {flops: 2, share: 1}]}\n"
      "measured: {mm fp32: [{flops: 10, bytes: 10, seconds: 1e-3}]}\n"
      "links:\n- {name: a, ranks: 4, latency_s: 1e-6, bytes_per_s: 1e9, share: 0.75}\n"
      "- {name: b, ranks: 8, latency_s: 1e-6, bytes_per_s: 1e9}\n- {name: c, ranks: 0, bytes_per_s: 1e8}\n"
      "error: 0.2\n";
  const size_t found = yaml.find(before);
  EXPECT_NE(found, std::string::npos) << before;
  return found == std::string::npos ? yaml : yaml.replace(found, before.size(), after);
}

TEST(Machine, RefusesWrongFiles) {
  EXPECT_EQ(refusal(edited("", "")), "");
  const std::string rate = "must be a finite number between 1 and 1e+30 (per second); ";
  const std::string multiple = "must be a multiple of the ranks of the link before, and larger; use 8 or";
  for (const auto& [before, after, words] : std::vector<std::array<std::string, 3>>{
           {"launch_s", "memory_bytes: many, launch_s", "device.memory_bytes = many: must be a finite number"},
           {"launch_s", "memory_bytes: -1, launch_s", "device.memory_bytes = -1"},
           {"launch_s", "memory_bytes: .nan, launch_s", "device.memory_bytes = .nan"},
           {"launch_s", "memory: 1, launch_s", "device.memory = (present): is not a known key"},
           {"{gpu", "3 #", "device = 3: must be a map"},
           {"flops: 2", "flops: 1", "sizes must ascend"},
           {"[{flops: 1, share: 0.5}, {flops: 2, share: 1}]", "[]", "operators.matmul = (nothing): must be a list"},
           {"share: 1}", "share: 1.01}",
            "operators.matmul[1].share = 1.01: must be a finite number between 1e-06 and 1 (fraction of the peak); "
            "correct it"},
           {"share: 0.75", "share: 1.5", "links[0].share = 1.5: must be a finite number between 1e-06 and 1"},
           {"fp32: 1e12", "fp32: 0", "device.peak_flops.fp32 = 0: " + rate + "correct it"},
           {"memory_bytes_per_s: 1e11,", "", "device.memory_bytes_per_s = (nothing): " + rate + "add it"},
           {"memory_bytes_per_s: 1e11", "memory_bytes_per_s: 0", "device.memory_bytes_per_s = 0: " + rate},
           {"memory_bytes_per_s: 1e11", "memory_bytes_per_s: 1e-300", "device.memory_bytes_per_s = 1e-300: " + rate},
           {"fp32: 1e12", "fp32: 1e300", "device.peak_flops.fp32 = 1e300: " + rate},
           {"latency_s: 1e-6", "latency_s: 1e300",
            "links[0].latency_s = 1e300: must be a finite number between 0 and 1e+06 (seconds); correct it"},
           {"seconds: 1e-3", "seconds: 0", "measured.mm fp32[0].seconds = 0"},
           {"flops: 10, bytes: 10", "flops: 0", "measured.mm fp32[0] = 0: must have flops or bytes above 0; add"},
           {"bytes_per_s: 1e9", "bytes_per_s: 0", "links[0].bytes_per_s = 0: " + rate},
           {"ranks: 4", "ranks: 4.5", "links[0].ranks = 4.5: must be a whole number; correct it"},
           {"ranks: 8", "ranks: 6", "links[1].ranks = 6: " + multiple},
           {"ranks: 8", "ranks: 4", "links[1].ranks = 4: " + multiple},
           {"ranks: 8", "ranks: 2", "links[1].ranks = 2: " + multiple},
           {"ranks: 0", "ranks: 16", "links[2].ranks = 16: must be 0 (all ranks)"},
           {"ranks: 8", "ranks: 0", "links[1].ranks = 0: must be 0 (all ranks)"},
           {"error: 0.2", "error: 1.2", "file.yaml: error = 1.2: must be a finite number between 0 and 1 (relative"},
           {"error: 0.2", "error: -0.1", "file.yaml: error = -0.1: must be a finite number between 0 and 1"},
           {"gpu: false", "capability: 90.5", "device.capability = 90.5: must be a whole number; correct it"},
           {"gpu: false", "capability: 9", "device.capability = 9: must be a finite number between 50 and 999"},
           {"gpu: false", "gpu: maybe", "device.gpu = maybe: must be true or false; correct it"},
           {"gpu: false", "gpu: false, gpu: true", "device.gpu = true: must be given once; remove the other entry"},
           {"ranks: 4", "ranks: 4, ranks: 2", "links[0].ranks = 2: must be given once"},
           {"device:", "[a]: 1\ndevice:", "file = (a list): each key must be a word"},
           {"error: 0.2", "sources: &a {b: *a}", "must have at most 8 levels"},
           {"device:", "a: [\n", "file.yaml: line"}})
    EXPECT_NE(refusal(edited(before, after)).find(words), std::string::npos) << after << "\n"
                                                                             << refusal(edited(before, after));
}

TEST(Machine, RefusesFilesWithoutLinks) {
  for (const char* links : {"", "links:\n", "links: []\n"})
    EXPECT_NE(refusal(std::string("device: {memory_bytes_per_s: 1e9}\n") + links)
                  .find("file.yaml: links = (nothing): must be a list of links; add {name"),
              std::string::npos)
        << links;
}

TEST(Machine, RefusesRootsOtherThanMaps) {
  for (const auto& [yaml, value] :
       std::vector<std::pair<std::string, std::string>>{{"3\n", "3"}, {"[a]\n", "(a list)"}, {"", "(nothing)"}})
    EXPECT_NE(
        refusal(yaml).find("file.yaml: file = " + value + ": must be a map with device, operators, and links; "),
        std::string::npos)
        << refusal(yaml);
}

std::string find_refusal(const std::string& name_or_path) {
  try {
    price::find_machine(name_or_path);
  } catch (const base::Error& error) { return error.what(); }
  return "";
}

TEST(Machine, RefusesUnreadableFiles) {
  const std::string missing = find_refusal("nope.yaml");
  EXPECT_NE(missing.find("no machine 'nope.yaml': must be a built-in name (a100, b200, cpu"), std::string::npos)
      << missing;
  EXPECT_NE(missing.find(") or a readable file, and is neither; use"), std::string::npos) << missing;
  const std::string folder = std::filesystem::temp_directory_path();
  EXPECT_NE(find_refusal(folder).find(folder + ": must be a machine file, and is a directory; use"),
            std::string::npos)
      << find_refusal(folder);
}

TEST(Machine, NamesTheFileWithoutADtype) {
  const Machine machine = read_machine("name: cpu\n" + edited("", ""), "my.yaml");
  try {
    price::operator_seconds(machine, {"mm", "bf16", 10, 10});
    ADD_FAILURE() << "no error";
  } catch (const base::Error& error) {
    EXPECT_NE(std::string(error.what()).find("my.yaml: device.peak_flops has no 'bf16'"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace metroplex::test::machine_test
