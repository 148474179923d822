// The seeds of the manifest fuzzer (tests/fuzz/manifest_corpus): only mutations of accepted texts reach the deeper
// parser code.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "files/manifest.h"

namespace metroplex::checkpoint::manifest_seeds_test {
namespace {

TEST(ManifestSeeds, AreAcceptedAndTogetherUseEveryFormOfTheFormat) {
  std::set<std::string> forms;
  int seeds = 0;
  const auto folder = std::filesystem::path(METROPLEX_SOURCE_DIR) / "tests/fuzz/manifest_corpus";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    SCOPED_TRACE(entry.path().filename().string());
    std::ostringstream members;
    members << std::ifstream(entry.path()).rdbuf();
    const std::string sealed = files::seal_manifest(members.str());
    files::Manifest manifest;
    ASSERT_NO_THROW(manifest = files::parse_manifest(sealed, "seed"));
    ++seeds;
    if (files::write_manifest(manifest).size() < sealed.size()) forms.insert("unknown members");
    if (manifest.files.size() > 1) forms.insert("several files");
    if (manifest.extra != "{}") forms.insert("extra");
    if (manifest.tensors.empty()) forms.insert("no tensors");
    for (const files::ManifestTensor& tensor : manifest.tensors) {
      forms.insert("kind " + tensor.kind);
      if (tensor.shape.empty()) forms.insert("a scalar");
      if (tensor.shape.size() == 16) forms.insert("16 dimensions");
      if (tensor.pieces.size() > 1) forms.insert("several pieces");
      for (const files::ManifestPiece& piece : tensor.pieces) {
        if (piece.size != tensor.shape) forms.insert("a box");
        if (piece.end - piece.begin != files::element_count(piece.size)) forms.insert("a range");
      }
    }
  }
  EXPECT_GE(seeds, 6);
  EXPECT_EQ(forms, (std::set<std::string>{"16 dimensions", "a box", "a range", "a scalar", "extra", "kind exp_avg",
                                          "kind exp_avg_sq", "kind main", "kind momentum_buffer", "kind weight",
                                          "no tensors", "several files", "several pieces", "unknown members"}));
}

}  // namespace
}  // namespace metroplex::checkpoint::manifest_seeds_test
