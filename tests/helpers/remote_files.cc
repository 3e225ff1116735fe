// A file system for TensorFlow, remote://, whose files lie below the folder that the environment variable REMOTE_FILES
// names. Only TensorFlow can open such paths, as with gs://.
#include <cstdlib>
#include <string>

#include "xla/tsl/platform/default/posix_file_system.h"
#include "xla/tsl/platform/env.h"

class RemoteFiles : public tsl::PosixFileSystem {
 public:
  TF_USE_FILESYSTEM_METHODS_WITH_NO_TRANSACTION_SUPPORT;

  std::string TranslateName(const std::string& name) const override {
    return std::string(std::getenv("REMOTE_FILES")) + "/" + name.substr(sizeof("remote://") - 1);
  }
};

REGISTER_FILE_SYSTEM("remote", RemoteFiles);
