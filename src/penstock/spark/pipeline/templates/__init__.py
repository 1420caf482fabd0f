"""Templates of new projects: `template` makes a project, the other modules have the files of one template each."""
