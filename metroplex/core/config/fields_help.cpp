#include "config/fields.h"

#include <algorithm>

#include "base/error.h"

namespace metroplex::config {

static std::string wrapped(const std::string& text, size_t indent, size_t width) {
  std::string out, line;
  const std::string margin(indent, ' ');
  size_t begin = 0;
  while (begin < text.size()) {
    size_t end = text.find(' ', begin);
    if (end == std::string::npos) end = text.size();
    const std::string word = text.substr(begin, end - begin);
    if (!line.empty() && indent + line.size() + 1 + word.size() > width) {
      out += margin + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
    begin = end + 1;
  }
  return line.empty() ? out : out + margin + line + "\n";
}

static std::string field_help(const Field& field) {
  std::string value = to_text(field);
  if (value.empty()) value = "(empty)";
  return "  --" + field.key() + "=" + value + "\n" + wrapped("[" + expectation(field) + "] " + field.help, 6, 100);
}

static std::string section_help(const SectionHelp& section, const std::vector<Field>& list) {
  std::string out = section.name + "\n" + wrapped(section.help, 2, 100) + "\n";
  for (const Field& field : list) {
    if (field.section == section.name) out += field_help(field);
  }
  return out + "\n";
}

std::string help(const std::string& topic) {
  Config defaults;
  const std::vector<Field> list = fields(defaults);
  if (topic.empty() || topic == "all") {
    std::string out = wrapped(
        "Every key can be written in the YAML file (section, then key) or given as --section.key=value, which wins "
        "over "
        "the file. Lists are written with commas: --data.data_path=0.7,wiki,0.3,code. The values below are the "
        "defaults.",
        0, 100);
    out += "\n";
    for (const SectionHelp& section : sections()) out += section_help(section, list);
    return out;
  }
  std::vector<std::string> names;
  for (const SectionHelp& section : sections()) {
    if (section.name == topic) return section_help(section, list);
    names.push_back(section.name);
  }
  for (const Field& field : list) {
    if (field.key() == topic) return field_help(field);
    names.push_back(field.key());
  }
  const std::string nearest = base::nearest_name(topic, names);
  base::throw_error("config", base::concat("no help for '", topic, "'; ",
                                           nearest.empty() ? "use a section (" + section_names() + "), a key, or all"
                                                           : "did you mean '" + nearest + "'?"));
}

}  // namespace metroplex::config
