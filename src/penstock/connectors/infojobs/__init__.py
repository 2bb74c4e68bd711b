"""InfoJobs: job offers."""
