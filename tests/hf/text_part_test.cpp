// The text model of a multimodal directory equals a directory of the text model alone.
#include "hf/text_part.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "hf/directories.h"
#include "hf/directory.h"
#include "support/error_of.h"
#include "support/folder.h"

namespace metroplex::hf::text_part_test {
namespace {

using test::catch_error;
using test::has;

files::PosixFileSystem disk;

// Writes `from` as the text model of a multimodal directory.
void write_multimodal(const std::string& from, const std::string& to, const std::string& prefix) {
  Json text = Json::parse(disk.read(from + "/config.json"));
  Json config{{"model_type", "gemma3"}, {"vision_config", Json::object()}, {"dtype", text.at("dtype")}};
  config["tie_word_embeddings"] = text.at("tie_word_embeddings");
  text.erase("dtype");
  text["tie_word_embeddings"] = false;  // the outer key counts
  config["text_config"] = text;
  std::ofstream(to + "/config.json") << config;
  std::filesystem::copy(from + "/generation_config.json", to);
  const std::string path = from + "/model.safetensors";
  const files::SafetensorsFile file(disk.map(path), path);
  std::vector<files::TensorInfo> infos = file.tensors();
  for (files::TensorInfo& info : infos) info.name = prefix + info.name.substr(std::string("model.").size());
  files::TensorInfo vision = infos.front();
  vision.name = "vision_tower.patch_conv.weight";
  infos.push_back(vision);
  files::order_tensors(infos);
  files::SafetensorsWriter writer(disk, to + "/model.safetensors", infos, {});
  for (const files::TensorInfo& info : infos) {
    const auto begins = [&info](const std::string& start) { return info.name.starts_with(start); };
    const files::TensorInfo* const source =
        begins(prefix) ? file.find("model." + info.name.substr(prefix.size())) : &file.tensors().front();
    writer.write(file.data(*source), source->end - source->begin);
  }
  writer.finish();
}

TEST(HfTextPart, IsReadLikeATextDirectory) {
  const std::string plain = test::kHfCases + "gemma3";
  Source expected(disk, plain, test::read_hf_model(plain));
  for (const char* prefix : {"model.language_model.", "language_model.model."}) {
    const test::Folder folder;
    write_multimodal(plain, folder.path(), prefix);
    EXPECT_EQ(read_settings(disk, folder.path()), read_settings(disk, plain)) << prefix;
    EXPECT_EQ(vocabulary_size(disk, folder.path()), vocabulary_size(disk, plain));
    const std::vector<std::string> notes = directory_notes(disk, folder.path());
    ASSERT_EQ(notes.size(), 1u);
    EXPECT_TRUE(has(notes[0], "has vision_config: only the text model")) << prefix;
    Source source(disk, folder.path(), test::read_hf_model(folder.path()));
    EXPECT_EQ(source.tensors().size(), expected.tensors().size());
    for (const files::TensorForm& form : expected.tensors()) {
      std::vector<std::byte> values[2];
      for (Source* one : {&source, &expected}) {
        std::vector<std::byte>& bytes = values[one == &source];
        const std::vector<int64_t> start(form.shape.size(), 0);
        bytes.resize(files::tensor_bytes(form.dtype, {form.shape.begin(), form.shape.end()}, form.name));
        one->fill({form.name, form.kind, form.shape, start, form.shape, form.dtype, bytes.data()});
      }
      EXPECT_EQ(values[0], values[1]) << prefix << " " << form.name;
    }
  }
  const test::Folder folder;
  write_multimodal(plain, folder.path(), "text_decoder.");
  const std::string error = catch_error([&] { Source(disk, folder.path(), test::read_hf_model(folder.path())); });
  EXPECT_TRUE(has(error, "no tensor of the text model; its names begin with")) << error;
}

}  // namespace
}  // namespace metroplex::hf::text_part_test
