// The files of machines/ as text, which cmake/EmbedFiles.cmake embeds.
#pragma once

namespace metroplex::price {

extern const char* const kA100Yaml;
extern const char* const kB200Yaml;
extern const char* const kCpuYaml;
extern const char* const kGb200Nvl72Yaml;
extern const char* const kH100Yaml;
extern const char* const kH200Yaml;
extern const char* const kMi300xYaml;

}  // namespace metroplex::price
