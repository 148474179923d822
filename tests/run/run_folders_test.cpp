// Folders in which a run may start.
#include "run/run_folders.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "base/error.h"
#include "files/memory_file_system.h"
#include "support/error_of.h"
#include "support/folder.h"

namespace metroplex::test::run_folders_test {
namespace {

TEST(RunFolders, ANonEmptySaveFolderIsForTheRunThatLoadsFromIt) {
  const Folder folder;
  files::PosixFileSystem disk;
  config::Config config;
  const std::string save = config.checkpoint.save = folder.at("ck");
  const auto check = [&] { return catch_error([&] { run::check_save_folder(config, disk); }); };
  EXPECT_EQ(check(), "") << "not there yet";
  disk.make_directories(save);
  disk.replace_file(save + "/.lock", "");
  disk.replace_file(save + "/run.yaml", "");
  disk.make_directories(save + "/tb");
  config.train.tensorboard_dir = save + "/tb/";
  EXPECT_EQ(check(), "") << "nothing but what the run writes itself";
  config.train.tensorboard_dir = "";
  EXPECT_NE(check().find("(tb)"), std::string::npos) << check();
  disk.make_directories(save + "/iter_0000005");
  for (const char* word : {"checkpoint.save = ", "iter_0000005", "checkpoint.load = ", "choose another"})
    EXPECT_NE(check().find(word), std::string::npos) << check();
  for (const std::string& load : {save, save + "/", folder.at("./ck"), save + "/iter_0000005", save + "/tb/.."}) {
    config.checkpoint.load = load;
    EXPECT_EQ(check(), "") << load;
  }
  std::filesystem::create_directory_symlink(save, folder.at("link"));
  config.checkpoint.load = folder.at("link");
  EXPECT_EQ(check(), "") << "the same through a link";
  config.checkpoint.finetune = true;
  for (const std::string& load : {save, save + "/iter_0000005", folder.at("link")}) {
    config.checkpoint.load = load;
    for (const char* word : {"checkpoint.finetune", "checkpoint.save = ", "checkpoint.load = "})
      EXPECT_NE(check().find(word), std::string::npos) << load << ": " << check();
  }
  config.checkpoint.finetune = false;
  config.checkpoint.load = folder.at("another");
  EXPECT_NE(check(), "");
  config.checkpoint.save = "";
  EXPECT_EQ(check(), "");
}

// For a mistyped name or a deleted checkpoint: retention would delete the existing checkpoints.
TEST(RunFolders, ACheckpointThatIsNotInTheSaveFolderIsNoReasonToBeginAnewThere) {
  const Folder folder;
  files::PosixFileSystem disk;
  config::Config config;
  const std::string save = config.checkpoint.save = folder.at("ck");
  disk.make_directories(save + "/iter_0000002");
  config.checkpoint.load = save + "/iter_0000003";
  const auto check = [&] { return catch_error([&] { run::check_save_folder(config, disk); }); };
  EXPECT_NE(check().find("is not empty (iter_0000002)"), std::string::npos) << check();
  config.checkpoint.load = save + "/iter_0000002";
  EXPECT_EQ(check(), "");
  const std::string empty = catch_error([&] { run::check_first_start(config, {}, disk); });
  EXPECT_NE(empty.find("nothing is loaded from it"), std::string::npos) << "a folder without a checkpoint: " << empty;
  config.checkpoint.load = save;
  EXPECT_EQ(check(), "");
}

TEST(RunFolders, AnExportIsADirectoryOfItsOwnThatCanBeMade) {
  files::MemoryFileSystem disk;
  disk.make_directory("/runs");
  disk.replace_file("/runs/file", "");
  config::Config config;
  config.checkpoint.save = "/runs/a";
  config.train.tensorboard_dir = "/runs/tb";
  const auto check = [&](const std::string& directory) {
    config.checkpoint.export_hf = directory;
    return catch_error([&] { run::check_save_folder(config, disk); });
  };
  EXPECT_EQ(check("/runs/hf"), "");
  EXPECT_EQ(check("/runs/a/hf"), "");
  EXPECT_NE(check("/runs/a").find("checkpoint.export_hf = /runs/a is also checkpoint.save"), std::string::npos);
  EXPECT_NE(check("/runs/tb").find("is also train.tensorboard_dir"), std::string::npos);
  EXPECT_NE(check("/runs/a/iter_0000002/").find("export_hf = /runs/a/iter_0000002/ is named like a checkpoint"),
            std::string::npos);
  const std::string below_a_file = check("/runs/file/hf");
  for (const char* part : {"checkpoint.export_hf", "/runs/file is not a directory", "choose another"})
    EXPECT_NE(below_a_file.find(part), std::string::npos) << below_a_file;
}

TEST(RunFolders, WhatIsThereOfAPathMustBeAFolder) {
  files::MemoryFileSystem disk;
  disk.make_directory("/runs");
  disk.replace_file("/runs/file", "");
  const auto check = [&](const std::string& save) { return catch_error([&] { run::check_writable(save, disk); }); };
  EXPECT_EQ(check("/runs"), "");
  EXPECT_EQ(check("/runs/a/b/"), "");
  EXPECT_NE(check("/runs/file/a").find("/runs/file is not a directory; choose another checkpoint.save"),
            std::string::npos);
}

TEST(RunFolders, WhatAnotherRunWroteLineByLineIsSetAsideUnderTheNextNumber) {
  const Folder folder;
  files::PosixFileSystem disk;
  const std::string path = folder.at("metrics.jsonl");
  EXPECT_EQ(run::move_aside("", disk), "");
  EXPECT_EQ(run::move_aside(path, disk), "") << "not there";
  disk.replace_file(path, "");
  EXPECT_EQ(run::move_aside(path, disk), "") << "empty";
  EXPECT_EQ(run::move_aside("/dev/null", disk), "") << "no file";
  disk.replace_file(path, "one");
  disk.replace_file(path + ".2", "older");
  EXPECT_EQ(run::move_aside(path, disk), path + ".1");
  EXPECT_FALSE(disk.exists(path));
  disk.replace_file(path, "two");
  EXPECT_EQ(run::move_aside(path, disk), path + ".3");
  EXPECT_EQ(disk.read(path + ".1"), "one");
  EXPECT_EQ(disk.read(path + ".2"), "older");
  EXPECT_EQ(disk.read(path + ".3"), "two");
  config::Config config;
  config.checkpoint.save = folder.at("");
  EXPECT_NE(catch_error([&] { run::check_save_folder(config, disk); }), "");
  config.train.metrics_file = path;
  EXPECT_EQ(catch_error([&] { run::check_save_folder(config, disk); }), "") << "they do not count as content";
  disk.replace_file(path + ".old", "");
  EXPECT_NE(catch_error([&] { run::check_save_folder(config, disk); }).find(".old"), std::string::npos);
}

TEST(RunFolders, OnlyAnEmptyOrAbsentLoadFolderMayBeAFreshStart) {
  files::MemoryFileSystem disk;
  config::Config config;
  config.checkpoint.load = config.checkpoint.save = "runs/a";
  const auto check = [&](const std::vector<std::string>& others) {
    return catch_error([&] { run::check_first_start(config, others, disk); });
  };
  EXPECT_EQ(check({}), "");
  config.train.metrics_file = "runs/a/metrics.jsonl";
  config.train.expert_trace_file = "runs/a/experts.jsonl";
  EXPECT_EQ(check({"metrics.jsonl", "experts.jsonl"}), "");
  EXPECT_NE(check({"metrics.jsonl", "mp_rank_00"}).find("(mp_rank_00)"), std::string::npos);
  config.checkpoint.save = "";
  EXPECT_NE(check({}).find("checkpoint.load = runs/a"), std::string::npos) << "nothing will ever be saved there";
  EXPECT_FALSE(run::same_folder("runs/a", "", disk));
  EXPECT_FALSE(run::same_folder("", "", disk));
  config.checkpoint.finetune = true;
  EXPECT_NE(check({}).find("finetune"), std::string::npos);
}

}  // namespace
}  // namespace metroplex::test::run_folders_test
